"""Readers of the corpora that no reading was judged on, on files like those of their packages."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from engine.evaluation import last_texts
from engine.evaluation.corpora import FRESH_SOURCES, LAST_SOURCES, NEW_SOURCES, TRAINED_SOURCES


def test_no_corpus_is_in_two_groups() -> None:
    assert not LAST_SOURCES.keys() & {*FRESH_SOURCES, *NEW_SOURCES, *TRAINED_SOURCES}


def test_a_psalm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chapter = (
        '<chapter n="23"/><title type="x-s">EXPOSITION</title> <hi type="bold">Verse 1.</hi> '
        '<hi type="italic">"The Lord is my shepherd."</hi> What care. '
        '<hi type="bold">Verse 2.</hi> <hi type="italic">He maketh me to lie down.</hi> Rest.'
        '<div sID="g"/> More. <hi type="bold">Verse 3.</hi> Only this.<title>HINTS</title> Not.'
    )
    packed = zlib.compress(chapter.encode())
    (tmp_path / "ot.czz").write_bytes(packed)
    (tmp_path / "ot.czs").write_bytes(struct.pack("<III", 0, len(packed), len(chapter)))
    monkeypatch.setattr(last_texts, "_PSALMS", tmp_path)
    [psalm] = last_texts.read_psalms()
    assert psalm.title == psalm.query == "Psalm 23, The Lord is my shepherd"
    assert psalm.body == (
        "## Verse 1\n\nWhat care.\n\n## He maketh me to lie down\n\nRest.\n\nMore.\n\nOnly this."
    )


def test_a_saga(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "The station is quiet. " * 8
    script = '<mission name="The {0}">\n<campaign>Far</campaign>\ntext = _([[{1}]])\nx = _("Go")'
    (tmp_path / "a.lua").write_text(script.format("Start", long), encoding="utf-8")
    (tmp_path / "b.lua").write_text(script.format("End", long), encoding="utf-8")
    monkeypatch.setattr(last_texts, "_MISSIONS", tmp_path)
    [saga] = last_texts.read_sagas()
    assert saga.title == "Far, part 1"
    assert saga.body == f"## The Start\n\n{long.strip()}\n\n## The End\n\n{long.strip()}"
