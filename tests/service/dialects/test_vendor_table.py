"""The table of vendors tells what the tests run, in the versions that they run with."""

from __future__ import annotations

import ast
import re
from importlib import metadata
from pathlib import Path
from typing import get_args

import pytest

from service.http.dialects.table import DIALECTS
from service.settings import DialectName
from tests.service.dialects.conftest import ALIASES
from tests.service.dialects.vendor_table import VENDOR_CLIENTS, VendorClient
from tools.check_dependencies import pins

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("client", VENDOR_CLIENTS, ids=lambda client: client.package)
def test_every_client_has_its_test(client: VendorClient) -> None:
    file, _, function = client.test.partition("::")
    body = ast.parse((HERE / file).read_text(encoding="utf-8")).body
    assert function in {part.name for part in body if isinstance(part, ast.FunctionDef)}


@pytest.mark.parametrize(
    "package", sorted({client.package for client in VENDOR_CLIENTS} & pins().keys())
)
def test_the_versions_are_those_installed(package: str) -> None:
    versions = {client.version for client in VENDOR_CLIENTS if client.package == package}
    assert versions == {metadata.version(package)}


def test_every_dialect_can_be_set_and_has_a_client() -> None:
    names = [dialect.name for dialect in DIALECTS]
    assert sorted(names) == sorted(get_args(DialectName))
    assert {client.dialect for client in VENDOR_CLIENTS} == set(names)


def test_the_names_of_the_page_are_those_tested() -> None:
    page = (HERE.parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
    found = re.search(r"`LLN_MODEL_ALIASES=(\S+)`", page)
    assert found is not None
    names = dict(pair.split("=") for pair in found[1].split(","))
    assert set(names) <= set(ALIASES)
    assert set(names.values()) == {"default"}
