"""Where an index lies, who may write it, and with which model."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from engine.async_engine import AsyncEngine
from engine.model.embedding_model import load_model
from engine.platform.locks import AlreadyRunning, writers_lock
from service.errors import StorageFailure
from service.index.errors import IndexMismatch
from service.index.open import open_to_write, served_model
from service.index.rows import IndexedFile
from service.index.schema import Recipe
from service.index.store import DATABASE, IndexStore
from tests.engine.precisions import USED_AS_INT8, needs_reduced_int8
from tests.service.index.folder import Run


def test_an_index_in_the_folder_itself_or_above_it(folder: Path, model: str, run: Run) -> None:
    where = ("--index", folder, "--model", model)
    [summary] = run("index", folder, *where)
    assert (summary["read"], summary["not_text"]) == (3, 0)
    [summary] = run("index", folder, *where)
    assert (summary["unchanged"], summary["not_text"]) == (3, 0)
    [summary] = run("index", folder / "deep", *where, "--rebuild")
    assert summary["read"] == 2


def test_an_index_moves_with_its_folder(folder: Path, model: str, run: Run, tmp_path: Path) -> None:
    run("index", folder, "--model", model)
    moved = folder.rename(tmp_path / "moved")
    [summary] = run("index", moved, "--model", model)
    assert (summary["unchanged"], summary["read"], summary["removed"]) == (3, 0, 0)
    with IndexStore.open(moved / ".lln") as store:
        assert store.recipe.folder == str(moved)
    copy = shutil.copytree(moved, tmp_path / "copy")
    assert run("index", copy, "--model", model)[0]["unchanged"] == 3
    elsewhere = ("--index", moved / ".lln", "--model", model)
    assert f"was made with folder {moved}, not {copy}" in run("index", copy, *elsewhere)


def test_an_index_by_a_model_in_this_folder_is_searched_from_others(
    folder: Path, model: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(model, folder.parent / "model")
    monkeypatch.chdir(folder.parent)
    run("index", folder, "--model", "./model")
    with IndexStore.open(folder / ".lln") as store:
        engine = AsyncEngine([load_model("./model")])  # a server that was started here
        assert served_model(store.recipe, engine) == "./model"
    monkeypatch.chdir(folder)
    assert run("search", "fox")[0]["file"] == "fox.md"
    assert run("index", folder, "--model", "../model")[0]["unchanged"] == 3


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
    refused = run("index", folder, "--model", other)
    assert (
        f"give --model {model} or another --index, or make a new one: lln index FOLDER --rebuild"
        in refused
    )
    assert run("index", folder, "--model", other, "--rebuild")[0]["read"] == 3


@pytest.mark.parametrize(
    ("records", "how", "again"),
    [
        (True, "without records", "lln index FOLDER --rebuild --records"),
        (False, "with records", "lln index FOLDER --rebuild"),
    ],
)
def test_records_that_an_index_does_not_keep_need_a_new_one(
    tmp_path: Path, records: bool, how: str, again: str
) -> None:
    """The command is named: `lln watch` has no --rebuild."""
    IndexStore.create(tmp_path, recipe(records=not records)).close()
    with pytest.raises(IndexMismatch) as refusal:
        open_to_write(tmp_path, recipe(records=records))
    assert f"was made {how}; give another --index, or" in refusal.value.message
    assert refusal.value.message.endswith(f"make a new one: {again}")


def recipe(*, records: bool = False) -> Recipe:
    how: dict[str, Any] = {"context": "balanced", "chunk_tokens": 256, "calibration": None}
    return Recipe(folder="docs", model="default", revision="1", dim=4, records=records, **how)


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


def test_an_index_that_was_not_made_to_its_end_is_none(
    folder: Path, model: str, run: Run, tmp_path: Path
) -> None:
    for empty in (folder / ".lln", tmp_path):
        empty.mkdir(exist_ok=True)
        with sqlite3.connect(empty / DATABASE) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.close()
    assert "has no index" in run("search", "fox", "--index", tmp_path)
    assert run("index", folder, "--model", model)[0]["read"] == 3


def test_a_disk_that_is_full_from_the_start_is_named(tmp_path: Path) -> None:
    (tmp_path / DATABASE).touch()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limit[1]))
    try:
        with pytest.raises(StorageFailure, match=f"{tmp_path} cannot be written"):
            IndexStore.create(tmp_path, recipe())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    with open_to_write(tmp_path, recipe()) as store:
        assert store.totals().files == 0


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """SQLite takes the transaction back itself then."""
    with IndexStore.create(tmp_path, recipe()) as store:
        [(pages,)] = store._db.execute("PRAGMA page_count").fetchall()
        store._db.execute(f"PRAGMA max_page_count = {pages + 3}")
        text = "x" * 200_000
        with pytest.raises(StorageFailure, match=r"disk is full\. What is done is kept: make room"):
            store.put(IndexedFile(path="a", size=1, mtime_ns=1, sha256="s", text=text))
        assert store.totals().files == 0
        store.put(IndexedFile(path="b", size=1, mtime_ns=1, sha256="s", text="fits"))
