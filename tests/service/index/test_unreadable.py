"""Folders and files that cannot be read are reported with the reason; the others are read."""

from __future__ import annotations

import json
from pathlib import Path
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
from tests.service.index.unreadable import folders_too_deep, give_up_privileges, modes
from tests.service.outside import wait_for
from tests.service.processes import ForkedProcess, clean_environment

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


def test_what_the_system_does_not_allow_to_read_stays_as_it_was_indexed(
    folder: Path, model: str, run: Run, tmp_path: Path
) -> None:
    """A folder that cannot be listed, one that tells nothing but names, and a file."""
    listed, new = folder / "listed/walrus.txt", folder / "new.txt"
    listed.parent.mkdir()
    listed.write_text("A walrus sings.")
    assert run("index", folder, "--model", model)[0]["read"] == 4
    new.write_text("Nobody may read this.")
    (folder / "fox.md").write_text("# The fox\n\nThe fox sleeps.\n")

    with modes({folder / "deep": 0, listed.parent: 0o444, new: 0}):
        output = tmp_path / "told.jsonl"
        assert without_privileges("index", folder, model, output).wait(60) == 0
        [summary] = summaries(output)
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


def test_a_folder_that_cannot_be_watched_hides_no_change(
    folder: Path, model: str, run: Run, tmp_path: Path
) -> None:
    """Some folders are listed before it, and some after it."""
    files = [folder / name / "new.txt" for name in "abcdefgh"]
    for file in files:
        file.parent.mkdir()
    listed = folder / "listed/walrus.txt"
    listed.parent.mkdir()
    listed.write_text("A walrus sings.")
    run("index", folder, "--model", model)
    output = tmp_path / "told.jsonl"
    with modes({folder / "deep": 0, listed.parent: 0o444}):
        watching = without_privileges("watch", folder, model, output)
        try:
            wait_for(lambda: bool(summaries(output)), "the first summary")
            for file in files:
                file.write_text(f"A walrus sings in {file.parent.name}.")
            wait_for(lambda: num_read(summaries(output)) >= len(files), "all that changed")
        finally:
            watching.kill()
            watching.wait()
    told = summaries(output)
    assert told[0]["problems"] == {"deep": DENIED, "listed/walrus.txt": DENIED}
    assert [summary["problems"] for summary in told[1:]] == [{}] * (len(told) - 1)


def test_what_lay_in_a_folder_that_is_a_file_now_has_gone(tmp_path: Path) -> None:
    (tmp_path / "deep").write_text("the fox")
    known = {"deep/wizards.html": FileState(1, "deep/wizards.html", 1, 1, "sha", "")}
    assert changes_in(tmp_path, known, tmp_path / PLACE).removed == ["deep/wizards.html"]


def without_privileges(command: str, folder: Path, model: str, output: Path) -> ForkedProcess:
    return ForkedProcess(
        [command, str(folder), "--model", model, "--json"],
        clean_environment(),
        stdout=output,
        stderr=output.with_suffix(".log"),
        prepare=give_up_privileges,
    )


def summaries(output: Path) -> list[dict[str, Any]]:
    """Those that have been written to their end."""
    if not output.exists():
        return []
    lines = output.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def num_read(told: list[dict[str, Any]]) -> int:
    return sum(summary["read"] for summary in told)


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
