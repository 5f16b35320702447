"""A heading, and the lines that headings are found in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_TITLE = 500
"""Characters. A longer one is not a title: every passage below would repeat it."""


class Heading(NamedTuple):
    start: int  # the first character of its markup
    level: int  # 1 is the outermost
    title: str


class Line(NamedTuple):
    start: int
    text: str  # without the line break

    @property
    def is_blank(self) -> bool:
        return not self.text.strip()


_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_BYTE_ORDER_MARK = "\ufeff"


def first_character(text: str) -> int:
    """Where a text begins: after the byte order mark that some editors put before it."""
    return len(_BYTE_ORDER_MARK) if text.startswith(_BYTE_ORDER_MARK) else 0


def lines_of(text: str) -> Iterator[Line]:
    for match in _LINE.finditer(text, first_character(text)):
        yield Line(match.start(), match[0].rstrip("\r\n"))
