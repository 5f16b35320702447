"""The table of clients tells what the tests run, in the versions that they run with."""

from __future__ import annotations

import ast
from importlib import metadata
from pathlib import Path

import pytest

from tests.service.clients.client_table import CLIENTS, JAVASCRIPT, Client

TESTS = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_every_client_has_its_test(client: Client) -> None:
    file, _, function = client.test.partition("::")
    body = ast.parse((TESTS / file).read_text(encoding="utf-8")).body
    [found] = [part for part in body if isinstance(part, ast.FunctionDef) and part.name == function]
    marks = " ".join(ast.unparse(mark) for mark in found.decorator_list)
    of_file = " ".join(ast.unparse(part) for part in body if isinstance(part, ast.Assign))
    assert ("mark.slow" in marks or "mark.slow" in of_file) == client.is_slow


@pytest.mark.parametrize(
    "package", sorted({client.package for client in CLIENTS if not client.is_slow})
)
def test_the_versions_are_those_installed(package: str) -> None:
    assert package != JAVASCRIPT
    versions = {client.version for client in CLIENTS if client.package == package}
    assert versions == {metadata.version(package)}
