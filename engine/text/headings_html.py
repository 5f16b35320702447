"""HTML's headings, h1 to h6; none in comments, scripts and styles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

from engine.text.heading import MAX_TITLE, Heading

_MARK = re.compile(
    r"<!--|<(?P<hidden>script|style|template)(?=[\s/>])|<h(?P<opens>[1-6])(?=[\s/>])[^<>]*>"
    r"|</h(?P<closes>[1-6])\s*>",
    re.IGNORECASE,
)
_TAG = re.compile(r"<[^<>]*>")


def looks_like_html(text: str) -> bool:
    return next(find_html(text), None) is not None


def find_html(text: str) -> Iterator[Heading]:
    opening: re.Match[str] | None = None
    place = 0
    while (mark := _MARK.search(text, place)) is not None:
        place = mark.end()
        if mark["opens"]:
            opening = mark
        elif mark["closes"]:
            if opening is not None and opening["opens"] == mark["closes"]:
                yield from _heading(text, opening, mark)
            opening = None
        else:
            place = _end_of_hidden(text, mark)


def _heading(text: str, opening: re.Match[str], closing: re.Match[str]) -> Iterator[Heading]:
    if closing.start() - opening.end() <= MAX_TITLE:
        title = unescape(_TAG.sub(" ", text[opening.end() : closing.start()]))
        yield Heading(opening.start(), int(opening["opens"]), " ".join(title.split()))


def _end_of_hidden(text: str, mark: re.Match[str]) -> int:
    """Where what is not shown ends: with the text if nothing closes it."""
    closing = "-->" if mark["hidden"] is None else f"</{mark['hidden']}"
    found = re.compile(re.escape(closing), re.IGNORECASE).search(text, mark.end())
    return len(text) if found is None else found.end()
