"""Headings of HTML: h1 to h6. None in comments, scripts, styles and templates."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

from engine.text.headings.heading import MAX_TITLE, Heading

_MARK = re.compile(
    r"<!--|<(?P<hidden>script|style|template)(?=[\s/>])|<h(?P<opens>[1-6])(?=[\s/>])[^<>]*>"
    r"|</h(?P<closes>[1-6])\s*>",
    re.IGNORECASE,
)
_TAG = re.compile(r"<[^<>]*>")


def html_headings(text: str) -> Iterator[Heading]:
    opening: re.Match[str] | None = None
    position = 0
    while (mark := _MARK.search(text, position)) is not None:
        position = mark.end()
        if mark["opens"]:
            opening = mark
        elif mark["closes"]:
            if (
                opening is not None
                and opening["opens"] == mark["closes"]
                and mark.start() - opening.end() <= MAX_TITLE
            ):
                title = unescape(_TAG.sub(" ", text[opening.end() : mark.start()]))
                yield Heading(opening.start(), int(opening["opens"]), " ".join(title.split()))
            opening = None
        else:
            position = _end_of_hidden(text, mark)


def _end_of_hidden(text: str, mark: re.Match[str]) -> int:
    """Where a comment or hidden element ends: at the end of the text if nothing closes it."""
    closing = "-->" if mark["hidden"] is None else f"</{mark['hidden']}"
    found = re.compile(re.escape(closing), re.IGNORECASE).search(text, mark.end())
    return len(text) if found is None else found.end()
