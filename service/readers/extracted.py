"""What a reader makes of a file."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from engine.errors import InvalidInput
from engine.text.titles import MAX_LINE, is_visible


@dataclass(frozen=True, kw_only=True)
class Extracted:
    """A file's text. Characters of passages are counted in this text."""

    text: str
    title: str | None = None
    """What the file says it is called; None if it does not."""

    page_starts: tuple[int, ...] = ()
    """The first character of each page, of formats that have pages."""

    def page_of(self, character: int) -> int | None:
        """The page that holds a character, counted from 1."""
        return page_of(self.page_starts, character)


def page_of(page_starts: tuple[int, ...], character: int) -> int | None:
    if not page_starts:
        return None
    return max(1, sum(start <= character for start in page_starts))


def told_title(metadata: str | None) -> str | None:
    """A title from a file's metadata, in the form that the model reads: on one line, and cut to
    MAX_LINE characters, since metadata may hold anything. None if nothing of it is visible."""
    line = " ".join((metadata or "").encode("utf-8", "ignore").decode().split())
    return line[:MAX_LINE].rstrip() if is_visible(line[:MAX_LINE]) else None


class Unreadable(InvalidInput):
    """A file or a row whose text cannot be read. The rest of a job continues without it."""

    code = "unreadable"


class NotText(Unreadable):
    """A file that holds no text at all, such as a picture. Folders may hold many of them."""

    code = "not_text"


def decode(content: bytes) -> str:
    """Text in UTF-8, without a byte order mark."""
    check_width(content)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(
            f"it is not text in UTF-8: invalid byte at {error.start}", code="not_utf8"
        ) from None


def check_width(content: bytes) -> None:
    """Raises Unreadable for what has more than a byte for each letter of ASCII, or is no text."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise Unreadable(
            "it is text in UTF-16, and only UTF-8 is read: convert it", code="not_utf8"
        )
    if b"\0" in content:
        raise NotText("it is not text: it has NUL bytes", code="not_text")
