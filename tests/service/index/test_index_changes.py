"""`lln index`, run again: what it reads, and that nothing is left of what was."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from tests.service.index.folder import Run
from tests.service.processes import unheard


def test_reads_only_what_changed(folder: Path, model: str, run: Run) -> None:
    run("index", folder, "--model", model)
    (folder / "fox.md").write_text("# The fox\n\nThe fox sleeps.\n")
    (folder / "deep/wizards.html").unlink()
    (folder / "deep/attention.txt").rename(folder / "moved.txt")
    (folder / "new.txt").write_text("Numbers 0 1 2 3.")
    [summary] = run("index", folder, "--model", model)
    assert {key: summary[key] for key in ("read", "moved", "removed", "unchanged")} == {
        "read": 2,
        "moved": 1,
        "removed": 1,
        "unchanged": 0,
    }
    assert run("search", "jumps", "--index", folder, "--by", "words") == []
    assert run("search", "wizards", "--index", folder, "--by", "words") == []
    assert run("search", "square", "--index", folder, "--by", "words")[0]["file"] == "moved.txt"
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["unchanged"]) == (0, 3)
    os.utime(folder / "new.txt")
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["unchanged"]) == (0, 3)


def test_equal_files_leave_together_and_move_together(folder: Path, model: str, run: Run) -> None:
    for name in ("copies/one.txt", "copies/two.txt", "three.txt", "four.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("A walrus sings.")
    run("index", folder, "--model", model)
    (folder / "copies").rename(folder / "moved")
    (folder / "three.txt").unlink()
    (folder / "four.txt").unlink()
    [summary] = run("index", folder, "--model", model)
    assert [summary[name] for name in ("read", "moved", "removed")] == [0, 2, 2]
    found = run("search", "walrus", "--index", folder, "--by", "words")
    assert {hit["file"] for hit in found} == {"moved/one.txt", "moved/two.txt"}


def test_a_file_that_is_now_read_in_another_way_is_read_again(
    folder: Path, model: str, run: Run
) -> None:
    (folder / "page.txt").write_text("<title>The sea</title><p>A walrus sings.</p>")
    run("index", folder, "--model", model)
    (folder / "page.txt").rename(folder / "page.html")
    [summary] = run("index", folder, "--model", model)
    assert [summary[name] for name in ("read", "moved", "removed")] == [1, 0, 1]
    [hit] = run("search", "walrus", "--index", folder, "--by", "words")
    assert (hit["file"], hit["title"], hit["text"]) == ("page.html", "The sea", "A walrus sings.")


def test_an_updated_index_is_that_of_a_new_one(folder: Path, model: str, run: Run) -> None:
    place, fresh = folder.parent / "one", folder.parent / "two"
    run("index", folder, "--model", model, "--index", place)
    (folder / "fox.md").write_text("A box.\n")
    run("index", folder, "--model", model, "--index", place)
    run("index", folder, "--model", model, "--index", fresh)
    assert _content(place) == _content(fresh)


def _content(place: Path) -> list[Any]:
    with sqlite3.connect(place / "index.sqlite") as db:
        found = db.execute(
            "SELECT path, sha256, title, text, number, first, last, headings, vector FROM files"
            " LEFT JOIN chunks ON files.id = chunks.file ORDER BY path, number"
        ).fetchall()
        words = db.execute(
            "SELECT path, number FROM words JOIN chunks ON words.rowid = chunks.id"
            " JOIN files ON files.id = chunks.file WHERE words MATCH 'box OR fox' ORDER BY 1, 2"
        ).fetchall()
    db.close()
    return [*found, *words]


@pytest.mark.long
def test_killed_and_run_again(folder: Path, model: str, run: Run, tmp_path: Path) -> None:
    """Whenever it is killed, what is there is whole, and the next run does the rest."""
    for number in range(60):
        (folder / f"page{number:02}.txt").write_text(f"Page {number}: {CORPUS_LINE * 40}")
    process = unheard("index", str(folder), "--model", model)
    database = folder / ".lln" / "index.sqlite"
    while process.poll() is None and _num_files(database) < 5:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = _num_files(database)
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["unchanged"]) == (63 - done, done)
    fresh = tmp_path / "fresh"
    run("index", folder, "--model", model, "--index", fresh)
    assert _content(folder / ".lln") == _content(fresh)


CORPUS_LINE = "every passage is read once and then remembered by all the others. "


def _num_files(database: Path) -> int:
    if not database.exists():
        return 0
    try:
        db = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        try:
            return int(db.execute("SELECT count(*) FROM files").fetchone()[0])
        finally:
            db.close()
    except sqlite3.Error:
        return 0
