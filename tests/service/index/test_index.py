"""`lln index` and `lln search`: what they read again, what they find, what they refuse."""

from __future__ import annotations

import errno
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engine import AsyncEngine
from engine.errors import DeviceFailure
from service.errors import StorageFailure
from service.index.place import PLACE
from service.index.rows import IndexedFile
from service.index.schema import Recipe
from service.index.search import any_word_of, fuse
from service.index.store import DATABASE, IndexStore
from service.locks import AlreadyRunning, writers_lock
from service.readers.files import READERS
from tests.engine.precisions import USED_AS_INT8, needs_reduced_int8
from tests.service.index.folder import PAGES, Run
from tests.service.processes import clean_environment

PDF = b"""%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 300]/Contents 4 0 R
/Resources<</Font<</F1 5 0 R>>>>>>endobj
4 0 obj<</Length 43>>stream
BT /F1 12 Tf 20 200 Td (Hello PDF) Tj ET
endstream endobj
5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj
6 0 obj<</Title(\xfe\xff\xd8\x00\x00A)>>endobj
trailer<</Root 1 0 R/Info 6 0 R>>
"""
"""Its title is half of a surrogate pair."""


def test_finds_passages_with_their_characters(folder: Path, model: str, run: Run) -> None:
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["problems"]) == (3, {})
    found = run("search", "wizards", "--index", folder)
    assert found[0]["file"] == "deep/wizards.html"
    assert found[0]["title"] == "Wizards"
    assert found[0]["text"] == "Seven wizards box."
    assert found[0]["words_rank"] == 1
    fox = run("search", "fox", "--index", folder, "--by", "words")
    characters = fox[0]["characters"]
    assert PAGES["fox.md"][characters["start"] : characters["end"]] == fox[0]["text"]
    assert fox[0]["headings"] == ["The fox"]
    assert len(run("search", "lazy", "--index", folder, "--by", "vectors", "-n", "2")) == 2


@pytest.mark.parametrize("by", ["both", "words", "vectors"])
def test_an_empty_query_is_refused(folder: Path, model: str, run: Run, by: str) -> None:
    run("index", folder, "--model", model)
    assert run("search", "", "--index", folder, "--by", by) == "lln: the query is empty"


def test_a_file_is_indexed_whatever_it_says_it_is_called(
    folder: Path, model: str, run: Run
) -> None:
    (folder / "long.html").write_text(f"<title>{'fox ' * 900}</title><p>The fox sleeps.</p>")
    (folder / "blank.html").write_text("<title>\u200b</title><p>The dog sleeps.</p>")
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["problems"]) == (5, {})


def test_a_search_by_words_does_not_wait_for_torch(folder: Path, model: str, run: Run) -> None:
    run("index", folder, "--model", model)
    search = ["search", "fox", "--index", str(folder), "--by", "words"]
    check = f"import sys; from service.cli.__main__ import main; main({search}); " + (
        "sys.exit('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", check], check=False, env=clean_environment())
    assert found.returncode == 0


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


def test_files_that_cannot_be_read_are_told_and_not_tried_again(
    folder: Path, model: str, run: Run
) -> None:
    (folder / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4 no")
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    (folder / "empty.txt").touch()
    (folder / "wide.txt").write_bytes("A text.".encode("utf-16"))
    [summary] = run("index", folder, "--model", model)
    assert summary["read"] == 3
    assert summary["not_text"] == 2
    assert set(summary["problems"]) == {"latin.txt", "broken.pdf", "wide.txt"}
    assert "UTF-16" in summary["problems"]["wide.txt"]
    assert "invalid byte at 3" in summary["problems"]["latin.txt"]
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["unchanged"], summary["problems"]) == (0, 8, {})


def test_a_file_that_could_not_be_read_is_tried_again(
    folder: Path, model: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in refuses to read it: whoever runs the tests may be allowed to read everything."""

    def refusing(path: Path) -> bytes:
        if path.name == "fox.md":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return path.read_bytes()

    with monkeypatch.context() as refused:
        refused.setattr("service.index.update.read_bytes", refusing)
        [summary] = run("index", folder, "--model", model)
        assert (summary["read"], summary["problems"]) == (2, {"fox.md": "Permission denied"})
        before = _changes(folder)
        [summary] = run("index", folder, "--model", model)
        assert (summary["unchanged"], summary["problems"]) == (3, {})
        assert _changes(folder) == before  # servers need not read their vectors again
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["unchanged"]) == (1, 2)
    assert run("search", "fox", "--index", folder, "--by", "words")


def test_a_file_that_did_not_fit_in_memory_is_tried_again(
    folder: Path, model: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine, or another setting, may have the memory."""
    (folder / "long.txt").write_text("seven wizards box " * 2_000)
    with monkeypatch.context() as small:
        small.setenv("LLN_ENGINE__MAX_SWEEP_BYTES", "300000")
        [summary] = run("index", folder, "--model", model)
        assert (summary["read"], list(summary["problems"])) == (3, ["long.txt"])
        assert "memory" in summary["problems"]["long.txt"]
        before = _changes(folder)
        [summary] = run("index", folder, "--model", model)
        assert (summary["unchanged"], summary["problems"]) == (4, {})
        assert _changes(folder) == before
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["unchanged"]) == (1, 3)
    assert run("search", "wizards", "--index", folder, "--by", "words")


def test_a_damaged_file_does_not_end_the_job(
    folder: Path, model: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in fails as no file is known to make a reader fail now."""

    def failing(content: bytes) -> None:
        raise RecursionError("too deep")

    monkeypatch.setitem(READERS, ".html", failing)
    [summary] = run("index", folder, "--model", model)
    problems = {"deep/wizards.html": "its reader failed: RecursionError: too deep"}
    assert (summary["read"], summary["problems"]) == (2, problems)


def test_a_file_on_which_the_device_fails_is_named(
    folder: Path, model: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in fails as few models do."""

    async def failing(*_: object, **__: object) -> None:
        raise DeviceFailure("not finite", code="non_finite_output")

    monkeypatch.setattr(AsyncEngine, "embed_document", failing)
    assert run("index", folder, "--model", model) == "lln: deep/attention.txt: not finite"


def test_a_pdf_with_a_broken_title_is_read(folder: Path, model: str, run: Run) -> None:
    (folder / "title.pdf").write_bytes(PDF)
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["problems"]) == (4, {})
    [found] = run("search", "hello", "--index", folder, "--by", "words")
    assert (found["file"], found["title"], found["text"]) == ("title.pdf", None, "Hello PDF")


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """SQLite takes the transaction back itself then."""
    how: dict[str, Any] = {"context": "balanced", "chunk_tokens": 256, "calibration": None}
    recipe = Recipe(folder="docs", model="default", revision="1", dim=4, **how)
    with IndexStore.create(tmp_path, recipe) as store:
        [(pages,)] = store._db.execute("PRAGMA page_count").fetchall()
        store._db.execute(f"PRAGMA max_page_count = {pages + 3}")
        text = "x" * 200_000
        with pytest.raises(StorageFailure, match="database or disk is full"):
            store.put(IndexedFile(path="a", size=1, mtime_ns=1, sha256="s", text=text))
        assert store.totals().files == 0
        store.put(IndexedFile(path="b", size=1, mtime_ns=1, sha256="s", text="fits"))


def test_an_index_in_the_folder_itself_or_above_it(folder: Path, model: str, run: Run) -> None:
    where = ("--index", folder, "--model", model)
    [summary] = run("index", folder, *where)
    assert (summary["read"], summary["not_text"]) == (3, 0)
    [summary] = run("index", folder, *where)
    assert (summary["unchanged"], summary["not_text"]) == (3, 0)
    [summary] = run("index", folder / "deep", *where, "--rebuild")
    assert summary["read"] == 2


def _changes(folder: Path) -> int:
    with IndexStore.open(folder / PLACE) as store:
        return store.changes


def test_a_full_queue_is_waited_for(
    folder: Path, model: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        (folder / f"{number}.txt").write_text(f"{number} foxes jump over dogs. " * 200)
    monkeypatch.setenv("LLN_ENGINE__MAX_QUEUE_TOKENS", "64")
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["problems"]) == (11, {})


def test_a_file_whose_name_is_not_utf8(folder: Path, model: str, run: Run) -> None:
    file = folder / os.fsdecode(b"caf\xe9.txt")
    file.write_text("A walrus sings.")
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["problems"]) == (4, {})
    [hit, *_] = run("search", "walrus", "--index", folder)
    assert hit["file"] == "caf\\xe9.txt"
    [summary] = run("index", folder, "--model", model)
    assert summary["unchanged"] == 4
    file.unlink()
    [summary] = run("index", folder, "--model", model)
    assert summary["removed"] == 1


def test_two_writers_are_refused(folder: Path, model: str, run: Run) -> None:
    place = folder / ".lln"
    place.mkdir()
    with writers_lock(place / "lock", "the index"):
        complaint = run("index", folder, "--model", model)
        assert f"another lln (process {os.getpid()})" in complaint
        with pytest.raises(AlreadyRunning), writers_lock(place / "lock", "the index"):
            pass
    assert run("index", folder, "--model", model)[0]["read"] == 3


def test_another_model_is_refused(
    folder: Path, model: str, run: Run, write_checkpoint: Any
) -> None:
    run("index", folder, "--model", model)
    other = str(write_checkpoint(seed=1))
    assert "give another --index, or rebuild it" in run("index", folder, "--model", other)
    assert run("index", folder, "--model", other, "--rebuild")[0]["read"] == 3


@needs_reduced_int8
def test_another_precision_is_refused_to_write_and_told_to_read(
    folder: Path,
    model: str,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run("index", folder, "--model", model)
    assert len(run("search", "fox", "--index", folder)) == 3
    assert "and is searched in" not in caplog.text
    monkeypatch.setenv("LLN_ENGINE__DTYPE", "int8")
    assert len(run("search", "fox", "--index", folder)) == 3
    assert f"made in float32 and is searched in {USED_AS_INT8}" in caplog.text
    refused = run("index", folder, "--model", model)
    assert f"made with dtype float32, not {USED_AS_INT8}" in refused
    _forget_the_dtype(folder / ".lln" / DATABASE)
    assert run("index", folder, "--model", model)[0]["unchanged"] == 3


def _forget_the_dtype(database: Path) -> None:
    """Makes an index such as versions wrote that did not keep it."""
    with sqlite3.connect(database) as connection:
        ((recipe,),) = connection.execute("SELECT content FROM recipe")
        older = {name: value for name, value in json.loads(recipe).items() if name != "dtype"}
        connection.execute("UPDATE recipe SET content = ?", (json.dumps(older),))


def test_what_is_no_index(folder: Path, tmp_path: Path, run: Run) -> None:
    assert "has no index" in run("search", "fox", "--index", tmp_path)
    assert "is not a folder" in run("index", tmp_path / "none")
    place = folder / ".lln"
    place.mkdir()
    (place / "index.sqlite").write_bytes(b"something else" * 100)
    assert "is not a database" in run("search", "fox", "--index", folder)


def test_killed_and_run_again(folder: Path, model: str, run: Run, tmp_path: Path) -> None:
    """Whenever it is killed, what is there is whole, and the next run does the rest."""
    for number in range(60):
        (folder / f"page{number:02}.txt").write_text(f"Page {number}: {CORPUS_LINE * 40}")
    command = [sys.executable, "-m", "service.cli", "index", str(folder), "--model", model]
    process = subprocess.Popen(
        command, env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
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


def test_nothing_in_a_query_is_syntax() -> None:
    assert any_word_of('NEAR("a" b*) -c AND c: é') == '"near" OR "a" OR "b" OR "c" OR "and" OR "é"'
    assert any_word_of('"*"') == ""


def test_fusion_rewards_what_both_lists_have() -> None:
    both = fuse([[(1, 9.0), (2, 8.0)], [(3, 0.9), (2, 0.8)]])
    assert [chunk for chunk, _ in both] == [2, 1, 3]
