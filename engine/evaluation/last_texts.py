"""Corpora that no reading was judged on before they were added, after those of `.fresh_texts`."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from engine.evaluation.fresh_texts import in_parts, joined
from engine.evaluation.pages import read_pages
from engine.training.data import Document

_HANDBOOK = Path("/usr/share/doc/debian-handbook/html/en-US")
_PSALMS = Path("/usr/share/sword/modules/comments/zcom/tdavid")
_MISSIONS = Path("/usr/share/naev/dat/missions")
_SAID = re.compile(r'_\((?:\[\[(.*?)\]\]|"((?:[^"\\]|\\.)*)")\)', re.DOTALL)
_SHORTEST_SPEECH = 120  # characters; shorter ones are labels

_EXPOSITION = re.compile(r"<title[^>]*>EXPOSITION</title>(.*?)(?=<title|\Z)", re.DOTALL)
_VERSE = re.compile(r'<hi type="bold">Verses? [^<]*</hi>')
_QUOTED = re.compile(
    r'\s*[“"]?<hi type="italic">[“"]?([^<"“”]{12,120}?)[.,;:!?]*["”]?</hi>["”]?[.,;:]?\s*'
)


def read_psalms() -> Iterator[Document]:
    """What Spurgeon says of each psalm, verse by verse under the words that he quotes first.

    A psalm is called by its number and, as is usual, by the words that it begins with.
    """
    for book in _books(_PSALMS):
        number = re.search(r'<chapter n="(\d+)"', book)
        told = _EXPOSITION.search(book)
        if number is None or told is None:
            continue
        _, *verses = _VERSE.split(told[1])
        words = _QUOTED.match(verses[0]) if verses else None
        if words is not None:
            title = f"Psalm {number[1]}, {_plain(words[1])}"
            first = f"## Verse 1\n\n{_plain(verses[0][words.end() :])}"
            parts = [first, *map(_under_its_words, verses[1:])]
            yield Document(f"psalm-{number[1]}", title, "\n\n".join(parts), title)


def _books(folder: Path) -> Iterator[str]:
    """The parts of a compressed SWORD module, of which each is a chapter here."""
    places = folder / "ot.czs"
    if not places.exists():
        return
    packed = (folder / "ot.czz").read_bytes()
    for start, size, _ in struct.iter_unpack("<III", places.read_bytes()):
        if size:
            yield zlib.decompress(packed[start : start + size]).decode("utf-8", "replace")


def _under_its_words(verse: str) -> str:
    """A verse's exposition; it goes on without a heading if it does not begin with a quotation."""
    words = _QUOTED.match(verse)
    if words is None:
        return _plain(verse)
    return f"## {_plain(words[1])}\n\n{_plain(verse[words.end() :])}"


def _plain(text: str) -> str:
    """Paragraphs without marks."""
    paragraphs = (re.sub(r"<[^>]*>", "", one) for one in re.split(r"<div sID=[^>]*>", text))
    return "\n\n".join(filter(None, (" ".join(one.split()) for one in paragraphs)))


def read_sagas() -> Iterator[Document]:
    """Tales of pilots among the stars: each campaign of a game, its missions under their names.

    Missions of no campaign are those of their folder: of a people, or of a trade.
    """
    sagas: dict[str, list[tuple[str, str]]] = {}
    for file in sorted(_MISSIONS.rglob("*.lua")):
        script = file.read_text("utf-8", "replace")
        mission = re.search(r'<mission name="([^"]+)"', script)
        campaign = re.search(r"<campaign>([^<]+)<", script)
        told = (" ".join((long or short).split()) for long, short in _SAID.findall(script))
        text = joined(one.replace('\\"', '"') for one in told if len(one) > _SHORTEST_SPEECH)
        if mission and text:
            saga = campaign[1] if campaign else file.parent.name
            sagas.setdefault(saga, []).append((mission[1], text))
    for saga, tales in sagas.items():
        yield from in_parts(saga, tales)


def read_servers() -> Iterator[Document]:
    """How to run servers: the sections of a handbook."""
    yield from read_pages(_HANDBOOK, ("sect.*.html",))
