"""One heading, however it is written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")


MAX_TITLE = 500
"""Characters: what goes on for longer is no title, and every passage below would repeat it."""


class Heading(NamedTuple):
    start: int  # the first character of what marks it
    level: int  # 1 is the outermost
    title: str


class Line(NamedTuple):
    start: int
    text: str  # without its end

    @property
    def is_blank(self) -> bool:
        return not self.text.strip()


def lines_of(text: str) -> Iterator[Line]:
    for match in _LINE.finditer(text):
        yield Line(match.start(), match[0].rstrip("\r\n"))
