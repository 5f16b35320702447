"""What the tests ask of each vendor's clients, for the second table in docs/clients.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.service.client_table import ROOT
from tools.check_dependencies import pins

APART = ROOT / "tests" / "clients"
"""Pins of the clients that tools/install_clients.py installs apart."""


@dataclass(frozen=True, kw_only=True)
class VendorClient:
    dialect: str
    vendor: str
    routes: str
    package: str
    """Its distribution, which constraints.txt or a file of tests/clients/ pins."""
    line: str
    """The line that changes, with the server's address as URL and its key as KEY."""
    works: str
    refused: str
    test: str
    """FILE::FUNCTION, below tests/service/dialects/."""

    @property
    def version(self) -> str:
        pinned = pins() | pins_apart()
        return pinned[self.package]


def pins_apart() -> dict[str, str]:
    lines = [line for file in APART.glob("*.txt") for line in file.read_text().splitlines()]
    found = (re.fullmatch(r"([a-z0-9_.-]+)==(\S+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match is not None}


VENDOR_CLIENTS = (
    VendorClient(
        dialect="voyage",
        vendor="Voyage",
        routes="`/v1/contextualizedembeddings`, `/v1/embeddings`",
        package="voyageai",
        line='`voyageai.Client(base_url="URL/v1", api_key="KEY")`',
        works="chunks that are given or cut here, queries, plain texts; vectors equal to "
        "`/v1/documents` to the bit; errors with our sentence",
        refused="chunks without tokens: they have no vector",
        test="test_voyage.py::test_contextual_chunks_are_those_of_our_own_route",
    ),
)


def vendor_rows() -> Iterator[tuple[str, str, str, str, str, str]]:
    for client in VENDOR_CLIENTS:
        package = f"{client.package} {client.version}"
        yield client.vendor, client.routes, package, client.line, client.works, client.refused
