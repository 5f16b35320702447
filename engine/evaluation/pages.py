"""HTML pages as titled text with Markdown headings: the readers of the corpora outside training.

The corpora of `engine.evaluation.corpora` were read in training. These were not: no shipped model
was trained on them, and no setting was chosen on them.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path

from engine.training.data import Document

_DOC = Path("/usr/share/doc")
_HIDDEN_TAGS = frozenset(("head", "script", "style", "nav"))
_HIDDEN_CLASSES = frozenset(
    [
        "navheader",
        "navfooter",
        "toc",
        "contents",
        "shortcontents",
        "indexterm",
        "nav_table",
        "header",
        "sphinxsidebar",
        "related",
        "footer",
    ]
)
_VOID_TAGS = frozenset(["br", "hr", "img", "link", "meta", "col", "input", "area", "base", "wbr"])
_BLOCK_TAGS = frozenset(
    ["p", "div", "pre", "dt", "dd", "li", "tr", "table", "ul", "ol", "blockquote"]
)
_NUMBER = re.compile(r"^(?:(?:chapter|appendix|part)\s+\S+|[A-Z]?(?:\.?\d+)+\.?)\s+", re.IGNORECASE)
_HEADING = re.compile(r"^(#{1,6}) (.+)$", re.MULTILINE)


class PartlyHidden(HTMLParser):
    """Reads a page, some elements of which are left out with all that they hold."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[str] = []
        self._open: list[str] = []
        self._hidden_below: int | None = None  # how deep the element lies that is left out

    def _hide(self) -> None:
        """Leave out the element that was opened last."""
        self._hidden_below = len(self._open)

    def handle_endtag(self, tag: str) -> None:
        """Close the element, and those in it that the page forgot to close."""
        if tag not in self._open:
            return
        while self._open.pop() != tag:
            pass
        if self._hidden_below is not None and len(self._open) < self._hidden_below:
            self._hidden_below = None


class PageText(PartlyHidden):
    """A page's text: headings as Markdown's, code indented, navigation left out."""

    def __init__(self) -> None:
        super().__init__()
        self._heading: list[str] | None = None

    @property
    def text(self) -> str:
        return re.sub(r"\s*\n\s*\n(?!    )\s*", "\n\n", "".join(self._parts)).strip()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _VOID_TAGS:
            self._parts.append("\n" if tag == "br" and self._hidden_below is None else "")
            return
        self._open.append(tag)
        names = (dict(attrs).get("class") or "").split()
        is_hidden = tag in _HIDDEN_TAGS or _HIDDEN_CLASSES.intersection(names)
        if self._hidden_below is None and is_hidden:
            self._hide()
        elif self._hidden_below is None and _level(tag):
            self._heading = []
        elif tag in _BLOCK_TAGS and self._heading is None:
            self._parts.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        was_open = tag in self._open
        super().handle_endtag(tag)
        if was_open and _level(tag) and self._heading is not None:
            title = plain_title(" ".join("".join(self._heading).split()))
            self._parts.append(f"\n\n{'#' * _level(tag)} {title}\n\n" if title else "")
            self._heading = None

    def handle_data(self, data: str) -> None:
        if self._hidden_below is not None:
            return
        if self._heading is not None:
            self._heading.append(data)
        elif "pre" in self._open:
            self._parts.append(data.replace("\n", "\n    "))  # a comment there is no heading
        else:
            self._parts.append(re.sub(r"\s+", " ", data))


def plain_title(title: str) -> str:
    """The title without its number: 9.1. System Boot is System Boot."""
    return _NUMBER.sub("", title.replace("¶", "")).strip()


def _level(tag: str) -> int:
    return int(tag[1]) if len(tag) == 2 and tag[0] == "h" and tag[1] in "123456" else 0


def documents_of(name: str, html: str, level: int | None = None) -> Iterator[Document]:
    """A page as one document under its first heading, or one for each heading of a level."""
    page = PageText()
    page.feed(html)
    text = page.text
    headings = list(_HEADING.finditer(text))
    chosen = headings[:1] if level is None else [one for one in headings if len(one[1]) == level]
    ends = [*(one.start() for one in chosen[1:]), len(text)][: len(chosen)]
    for number, (heading, end) in enumerate(zip(chosen, ends, strict=True)):
        title = heading[2].strip()
        # Some pages repeat their title above the first paragraph.
        repeated = re.compile(rf"^#+ {re.escape(title)}$\s*", re.MULTILINE)
        body = repeated.sub("", text[heading.end() : end]).strip()
        if len(body) > 400:
            yield Document(f"{name}#{number}" if level else name, title, body, title)


def read_pages(
    folder: Path, patterns: Sequence[str] = ("*.html",), level: int | None = None
) -> Iterator[Document]:
    for pattern in patterns:
        for file in sorted(folder.glob(pattern)):
            data = file.read_bytes()
            data = gzip.decompress(data) if file.suffix == ".gz" else data
            yield from documents_of(
                str(file.relative_to(folder)), data.decode("utf-8", "replace"), level
            )


def read_essays() -> Iterator[Document]:
    """Long essays on politics; their titles are those of the pages, which have no first heading."""
    folder = _DOC / "anarchism" / "html"
    for file in sorted(folder.glob("*.html")):
        html = file.read_text("utf-8", "replace")
        named = re.search(r"<title>([^<|]*)", html)
        if named is not None:
            title = f"<h1>{named[1]}</h1>"
            pages = documents_of(file.name, html.replace("<body>", f"<body>{title}", 1))
            yield from (one for one in pages if len(_HEADING.findall(one.body)) >= 3)


def read_images() -> Iterator[Document]:
    """How to edit pictures."""
    yield from read_pages(Path("/usr/share/gimp/2.0/help/en"))


def read_accounts() -> Iterator[Document]:
    """How to keep accounts: chapters and sections of a guide to bookkeeping."""
    yield from read_pages(_DOC / "gnucash-docs" / "gnucash-guide-en")


def read_music() -> Iterator[Document]:
    """How to write scores: chapters of manuals of music notation."""
    folder = _DOC / "lilypond" / "html" / "Documentation"
    manuals = ("learning", "notation", "essay", "usage")
    yield from read_pages(folder, [f"{name}-big-page.html" for name in manuals], 2)


def read_standards() -> Iterator[Document]:
    """A distribution's policy and the standard of its file system, by chapter."""
    yield from read_pages(_DOC / "debian-policy", ("policy.html/*.html",))
    yield from read_pages(_DOC / "debian-policy" / "fhs", level=2)


def read_statistics() -> Iterator[Document]:
    """Manuals of a language for statistics, by chapter."""
    yield from read_pages(Path("/usr/share/R/doc/manual"), level=2)


def read_biology() -> Iterator[Document]:
    """How to estimate the trees by which species, sequences and traits are related."""
    yield from read_pages(_DOC / "phylip" / "html" / "doc")


def read_colours() -> Iterator[Document]:
    """How to measure colours of screens, prints and cameras."""
    yield from read_pages(_DOC / "argyll-doc")


def read_skies() -> Iterator[Document]:
    """What peoples tell of their stars."""
    for file in sorted(Path("/usr/share/stellarium/skycultures").glob("*/description.en.utf8")):
        yield from documents_of(file.parent.name, file.read_text("utf-8", "replace"))
