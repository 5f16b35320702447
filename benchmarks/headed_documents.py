"""Documentation as paragraphs, with its headings removed and recorded as boundaries.

The corpora are reStructuredText of Debian's python3.11-doc and linux-doc-6.1, where installed.
"""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

_DOC = Path("/usr/share/doc")
CORPORA: Mapping[str, Path] = MappingProxyType(
    {
        "Python documentation": _DOC / "python3.11" / "html" / "_sources",
        "kernel documentation": _DOC / "linux-doc-6.1" / "Documentation",
    }
)
_LINE = re.compile(r"^([=\-~^\"'#*+.:_`])\1{2,}\s*$")
_MIN_WORDS, _MAX_WORDS = 600, 6_000
_MIN_HEADINGS, _MIN_PARAGRAPHS_A_SECTION = 3, 2.5


@dataclass(frozen=True)
class Sections:
    """A document's paragraphs, and which of them are the first below a heading."""

    paragraphs: tuple[str, ...]
    begins: tuple[bool, ...]

    @property
    def text(self) -> str:
        return "\n\n".join(self.paragraphs)

    @property
    def starts(self) -> list[int]:
        """Where each paragraph begins, in characters."""
        starts, at = [], 0
        for paragraph in self.paragraphs:
            starts.append(at)
            at += len(paragraph) + 2
        return starts

    @property
    def num_boundaries(self) -> int:
        return sum(self.begins)

    @property
    def is_fair(self) -> bool:
        """Whether its length is usual and its sections are more than a list of headings."""
        words = sum(len(paragraph.split()) for paragraph in self.paragraphs)
        a_section = len(self.paragraphs) / (self.num_boundaries + 1)
        return (
            _MIN_WORDS <= words <= _MAX_WORDS
            and self.num_boundaries >= _MIN_HEADINGS
            and a_section >= _MIN_PARAGRAPHS_A_SECTION
        )


def draw_sections(folder: Path, count: int, seed: int) -> list[Sections]:
    """`count` fair documents of a folder, drawn at random."""
    paths = sorted(path for path in folder.rglob("*.rst*") if "translations" not in path.parts)
    random.Random(seed).shuffle(paths)
    fair = (found for path in paths if (found := sections_of(_read(path))).is_fair)
    return [sections for _, sections in zip(range(count), fair, strict=False)]


def _read(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix == ".gz":
        data = gzip.decompress(data)
    return data.decode(errors="replace")


def sections_of(source: str) -> Sections:
    paragraphs: list[str] = []
    begins: list[bool] = []
    below_heading = False
    for block in _blocks(source.split("\n")):
        if block is None:
            below_heading = True
        elif not block.startswith(".. "):  # directives and comments are no prose
            begins.append(below_heading and bool(paragraphs))
            paragraphs.append(block)
            below_heading = False
    return Sections(tuple(paragraphs), tuple(begins))


def _blocks(lines: list[str]) -> Iterator[str | None]:
    """Paragraphs in order, and None for a heading."""
    paragraph: list[str] = []
    at = 0
    while at < len(lines):
        height = 0 if paragraph else _heading_height(lines[at : at + 3])
        if height or not lines[at].strip():
            if paragraph:
                yield "\n".join(paragraph).strip()
                paragraph = []
            if height:
                yield None
        else:
            paragraph.append(lines[at])
        at += height or 1
    if paragraph:
        yield "\n".join(paragraph).strip()


def _heading_height(lines: list[str]) -> int:
    """Lines of the heading that begins here: 3 over- and underlined, 2 underlined, 0 for none."""
    if len(lines) == 3 and _LINE.match(lines[0]) and lines[1].strip() and _LINE.match(lines[2]):
        return 3
    is_underlined = len(lines) > 1 and lines[0].strip() and _LINE.match(lines[1])
    return 2 if is_underlined and not _LINE.match(lines[0]) else 0
