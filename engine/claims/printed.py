"""What the papers print for each claim, and how it is read: printed.toml, by the claim's id."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

_FILE = Path(__file__).with_name("printed.toml")
_DEFAULT_READING = "word for word, on the cases that the check tries"


@dataclass(frozen=True)
class Printed:
    place: str
    words: str
    reading: str | None = None  # only where the words leave a choice


def find_printed(claim_id: str) -> Printed | None:
    """None for statements that no paper prints."""
    return printed_claims().get(claim_id)


def reading_of(claim_id: str) -> str:
    found = find_printed(claim_id)
    return (found.reading if found else None) or _DEFAULT_READING


@cache
def printed_claims() -> Mapping[str, Printed]:
    papers = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return MappingProxyType(
        {
            f"{paper}.{name}": Printed(**fields)
            for paper, claims in papers.items()
            for name, fields in claims.items()
        }
    )
