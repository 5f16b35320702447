"""Folders and files that cannot be read are reported with the reason; the others are read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from threading import Timer
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from service.bulk.fields import Fields
from service.bulk.rows import BadRow
from service.bulk.source_rows import rows_of
from service.bulk.sources import find_sources, total_bytes
from service.index.place import PLACE
from service.index.scan import changes_in
from service.index.store import FileState
from tests.service.index.folder import Run
from tests.service.index.unreadable import folders_too_deep, modes, without_privileges
from tests.service.processes import clean_environment

DENIED = "Permission denied"


def test_a_folder_that_cannot_be_listed_does_not_end_an_index(
    folder: Path, model: str, run: Run
) -> None:
    with folders_too_deep(folder / "far") as deepest:
        [summary] = run("index", folder, "--model", model)
        assert (summary["read"], summary["problems"]) == (3, {deepest: "File name too long"})
        [summary] = run("index", folder, "--model", model)
        assert (summary["unchanged"], summary["problems"]) == (4, {})
    [summary] = run("index", folder, "--model", model)
    assert (summary["unchanged"], summary["problems"]) == (3, {})


@pytest.mark.long
def test_what_the_system_does_not_allow_to_read_stays_as_it_was_indexed(
    folder: Path, model: str, run: Run
) -> None:
    """A folder that cannot be listed, one that tells nothing but names, and a file."""
    listed, new = folder / "listed/walrus.txt", folder / "new.txt"
    listed.parent.mkdir()
    listed.write_text("A walrus sings.")
    assert run("index", folder, "--model", model)[0]["read"] == 4
    new.write_text("Nobody may read this.")
    (folder / "fox.md").write_text("# The fox\n\nThe fox sleeps.\n")

    with modes({folder / "deep": 0, listed.parent: 0o444, new: 0}):
        summary = index_without_privileges(folder, model)
        assert summary["problems"] == {
            "deep": DENIED,
            "listed/walrus.txt": DENIED,
            "new.txt": DENIED,
        }
        assert (summary["read"], summary["removed"]) == (1, 0)
        for word in ("wizards", "walrus", "sleeps"):
            assert run("search", word, "--index", folder, "--by", "words")
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["unchanged"], summary["problems"]) == (1, 4, {})


def test_an_index_is_searched_where_nobody_may_write(folder: Path, model: str, run: Run) -> None:
    """As on a file system that is mounted to be read only."""
    run("index", folder, "--model", model)
    search = (sys.executable, "-m", "service.cli", "search", "wizards", "--index", str(folder))
    with modes({folder / PLACE: 0o555}):
        done = subprocess.run(
            without_privileges(*search, "--by", "words"),
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Seven wizards box." in done.stdout


@pytest.mark.long
def test_a_folder_that_cannot_be_watched_hides_no_change(
    folder: Path, model: str, run: Run
) -> None:
    """Some folders are listed before it, and some after it."""
    files = [folder / name / "new.txt" for name in "abcdefgh"]
    for file in files:
        file.parent.mkdir()
    watch = (sys.executable, "-m", "service.cli", "watch", str(folder), "--model", model, "--json")
    listed = folder / "listed/walrus.txt"
    listed.parent.mkdir()
    listed.write_text("A walrus sings.")
    run("index", folder, "--model", model)
    with modes({folder / "deep": 0, listed.parent: 0o444}):
        process = subprocess.Popen(
            without_privileges(*watch), env=clean_environment(), stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        give_up = Timer(60, process.kill)
        give_up.start()
        told = []
        try:
            told.append(json.loads(process.stdout.readline()))
            for file in files:
                file.write_text(f"A walrus sings in {file.parent.name}.")
            while sum(summary["read"] for summary in told) < len(files):
                told.append(json.loads(process.stdout.readline()))
        finally:
            give_up.cancel()
            process.kill()
            process.communicate()
    assert told[0]["problems"] == {"deep": DENIED, "listed/walrus.txt": DENIED}
    assert [summary["problems"] for summary in told[1:]] == [{}] * (len(told) - 1)


def test_what_lay_in_a_folder_that_is_a_file_now_has_gone(tmp_path: Path) -> None:
    (tmp_path / "deep").write_text("the fox")
    known = {"deep/wizards.html": FileState(1, "deep/wizards.html", 1, 1, "sha", "")}
    assert changes_in(tmp_path, known, tmp_path / PLACE).removed == ["deep/wizards.html"]


def index_without_privileges(folder: Path, model: str) -> dict[str, Any]:
    index = (sys.executable, "-m", "service.cli", "index", str(folder), "--model", model, "--json")
    done = subprocess.run(
        without_privileges(*index), env=clean_environment(), capture_output=True, check=True
    )
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def test_what_cannot_be_read_is_a_bad_row_of_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the fox")
    with folders_too_deep(tmp_path / "far") as deepest:
        sources = find_sources([str(tmp_path)])
        assert total_bytes(sources) == len("the fox")
        row, bad = rows_of(sources, Fields())
    assert isinstance(bad, BadRow)
    assert (row.id, bad.id, bad.reason) == ("a.txt", deepest, "File name too long")


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet", "txt"])
def test_a_file_of_any_format_that_cannot_be_opened_is_a_bad_row(
    tmp_path: Path, suffix: str
) -> None:
    """It goes when it has been found: who runs the tests may be allowed to read everything."""
    for name in (f"a.{suffix}", f"b.{suffix}"):
        pyarrow.parquet.write_table(pyarrow.table({"text": ["the fox"]}), tmp_path / name)
        if suffix != "parquet":
            (tmp_path / name).write_text('"text"\n"the fox"\n' if suffix == "csv" else '"the fox"')
    sources = find_sources([str(tmp_path)])
    (tmp_path / f"a.{suffix}").unlink()
    bad, row = rows_of(sources, Fields())
    assert isinstance(bad, BadRow)
    assert (bad.id, bad.code) == (f"a.{suffix}", "unreadable")
    assert not isinstance(row, BadRow)
