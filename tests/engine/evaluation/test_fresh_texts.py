"""Readers of the corpora that were never scored, on files like those of their packages."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest

from engine.errors import InvalidInput
from engine.evaluation import fresh_texts
from engine.evaluation.corpora import FRESH_SOURCES, NEW_SOURCES, TRAINED_SOURCES, load_corpus


def test_no_corpus_is_in_two_groups() -> None:
    assert not FRESH_SOURCES.keys() & {*NEW_SOURCES, *TRAINED_SOURCES}


@pytest.mark.parametrize("name", FRESH_SOURCES)
def test_a_fresh_corpus_is_titled_or_tells_its_package(name: str) -> None:
    first = next(FRESH_SOURCES[name].read(), None)
    if first is None:
        with pytest.raises(InvalidInput, match="needs the package") as missing:
            load_corpus(name)
        assert missing.value.code == "missing_package"
    else:
        assert first.title
        assert first.title == first.query


def test_a_country(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_texts, "npm_package", lambda _: tmp_path)
    (tmp_path / "europe").mkdir()
    names = {
        "conventional long form": {"text": "Grand Duchy"},
        "conventional short form": {"text": "none"},
    }
    row = {
        "Geography": {"Area": {"total": {"text": "9 sq km"}, "land": {"text": "8 sq km"}}},
        "Government": {"Country name": names, "Capital": {"text": "A ++ B", "note": None}},
    }
    (tmp_path / "europe" / "gd.json").write_text(json.dumps(row), encoding="utf-8")
    [one] = fresh_texts.read_nations()
    assert one.title == "Grand Duchy"
    assert one.body.startswith("## Geography\n\nArea: total: 9 sq km; land: 8 sq km\n\n## Gov")
    assert one.body.endswith("Capital: A; B")


def test_a_commentary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chapter = (
        '<chapter n="{0}"/><table><row><cell>What {0} tells.</cell><cell>(1-3)</cell></row></table>'
        '<hi type="bold">Verses 1-3</hi> <div/> It says\n much. <hi type="bold">Verse 4</hi> More.'
    )
    book = '<milestone n="Ruth" type="x-usfm-toc1"/>' + "".join(map(chapter.format, range(1, 7)))
    packed = zlib.compress(book.encode())
    (tmp_path / "ot.bzz").write_bytes(b"..." + packed)
    places = struct.pack("<III", 0, 0, 0) + struct.pack("<III", 3, len(packed), len(book))
    (tmp_path / "ot.bzs").write_bytes(places)
    monkeypatch.setattr(fresh_texts, "_COMMENTARY", tmp_path)
    first, last = fresh_texts.read_commentary()
    assert (first.title, last.title) == ("Ruth, chapters 1 to 3", "Ruth, chapters 4 to 6")
    assert last.body.startswith("## What 4 tells\n\nIt says much.\n\n## Verses 4\n\nMore.")


def test_stories_of_games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_texts, "_GAMES", tmp_path)
    scenarios = tmp_path / "wesnoth/1.16/data/campaigns/One/scenarios"
    scenarios.mkdir(parents=True)
    script = 'name= _ "The Siege"\nstory= _ "Long\nago."\nmessage= _ "He said ""Go"" to us."\n'
    (scenarios / "01.cfg").write_text(script, encoding="utf-8")
    [siege] = fresh_texts.read_campaigns()
    assert siege.title == "One, part 1"
    assert siege.body == '## The Siege\n\nLong ago. He said "Go" to us.'
    data = tmp_path / "endless-sky/data"
    data.mkdir(parents=True)
    mission = 'x\nmission "First"\n\tname `Far`\n\ton offer\n\t\tconversation\n\t\t\t`Hello.`\n'
    (data / "m.txt").write_text(mission + "\t\t\t`" + "Go. " * 150 + "`\n\t\t\t`End.`\n", "utf-8")
    [far] = fresh_texts.read_voyages()
    assert far.title == "m, part 1"
    assert far.body.startswith("## Far\n\nHello. Go.")
    assert far.body.endswith("\n\nEnd.")
