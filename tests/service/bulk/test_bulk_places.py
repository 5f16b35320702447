"""`lln embed --from`: where a job may write, and what it says when it cannot go on."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from engine import AsyncEngine
from engine.errors import DeviceFailure
from tests.service.bulk.command import TEXTS, Run, lines


def test_no_file_of_the_caller_is_written_over(
    corpus: Path, model: str, run: Run, tmp_path: Path
) -> None:
    """A job without bad rows takes away the file of those that an earlier run had."""
    content = corpus.read_bytes()
    out, mine = tmp_path / "out.npy", tmp_path / "mine.txt"
    mine.write_text("precious")
    job = ("--from", corpus, "--model", model)
    assert f"{corpus} would be read and written by the same job" in run(
        *(*job, "--out", out, "--bad", corpus)
    )
    assert "would be read and written" in run(*job, "--out", corpus, "--replace")
    assert "mine.txt exists; give another name" in run(*job, "--out", out, "--bad", mine)
    assert "written as an output and with the bad rows" in run(*job, "--out", out, "--bad", out)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    same = run(*job, "--out", out, "--bad", link / out.name)
    assert "written as an output and with the bad rows" in same
    folder = tmp_path / "folder.npy"
    folder.mkdir()
    for where in (("--out", folder), ("--out", out, "--bad", folder)):
        assert "is a folder, and would be written as a file" in run(*job, *where, "--replace")
    assert (corpus.read_bytes(), mine.read_text()) == (content, "precious")


def test_bad_rows_may_go_to_a_new_folder_and_another_disk(
    model: str, run: Run, tmp_path: Path
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": 1, "text": "the fox"}\n{"id": 2}\n')
    places = [tmp_path / "new" / "bad.jsonl"]
    if other := another_disk(tmp_path):
        places.append(Path(other) / "bad.jsonl")
    for number, bad in enumerate(places):
        out = tmp_path / f"{number}.npy"
        assert run("--from", corpus, "--out", out, "--bad", bad, "--model", model)["bad"] == 1
        assert [row["id"] for row in lines(bad)] == [2]
        assert [one.name for one in bad.parent.iterdir()] == ["bad.jsonl"]
    if other:
        shutil.rmtree(other)


def another_disk(folder: Path) -> str | None:
    """A folder that nothing can be moved to from this one; None if this machine has none."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == folder.stat().st_dev:
        return None
    return tempfile.mkdtemp(dir=shared)


def test_a_row_on_which_the_device_fails_is_named(
    corpus: Path, model: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in fails as few models do."""

    embed = AsyncEngine.embed

    async def failing(engine: AsyncEngine, texts: Any, **options: Any) -> Any:
        if TEXTS[1] in texts:
            raise DeviceFailure("not finite", code="non_finite_output")
        return await embed(engine, texts, **options)

    monkeypatch.setattr(AsyncEngine, "embed", failing)
    out = corpus.with_name("out.npy")
    told = run("--from", corpus, "--out", out, "--model", model)
    assert told == "lln: row doc1: not finite"
