"""An index that is read while it is written, or that is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engine.async_engine import AsyncEngine
from engine.model.embedding_model import load_model
from engine.types import Chunk, Span
from service.errors import StorageFailure, row_for
from service.index.open import open_to_write
from service.index.rows import IndexedFile
from service.index.schema import Recipe
from service.index.search import Searcher
from service.index.serving import IndexSearch
from service.index.store import DATABASE, IndexStore
from service.index.update import recipe_for

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

RECIPE = Recipe(
    folder="",
    model="model",
    revision="",
    calibration=None,
    dim=2,
    context="late",
    chunk_tokens=256,
)


def file(path: str, text: str = "A fox.", dim: int = 2) -> IndexedFile:
    vector = np.eye(dim, dtype=np.float32)[0]
    whole = Span(0, len(text))
    chunk = Chunk(index=0, tokens=Span(0, 2), characters=whole, vector=vector)
    return IndexedFile(path=path, size=1, mtime_ns=1, sha256=path, text=text, chunks=[chunk])


def test_vectors_are_those_of_one_moment(tmp_path: Path) -> None:
    """A file is added after the vectors were counted, and before they are read."""
    with IndexStore.create(tmp_path, RECIPE) as writer, IndexStore.open(tmp_path) as reader:
        writer.put(file("first.txt"))

        def meanwhile(statement: str) -> None:
            if statement.startswith("SELECT id, vector") and writer.totals().files == 1:
                writer.put(file("second.txt"))

        reader._db.set_trace_callback(meanwhile)
        searcher = Searcher(reader)
        query = np.array([1, 0], np.float32)
        assert len(searcher.search("fox", query, limit=5, ways="vectors")) == 1
        assert len(searcher.search("fox", query, limit=5, ways="vectors")) == 2


def test_an_index_beside_which_nobody_may_write_is_opened_again_once_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes has rights of their own, and whoever runs the tests may have all of them."""
    may_write = False
    monkeypatch.setattr("os.access", lambda path, mode: may_write)
    with IndexStore.create(tmp_path, RECIPE) as writer:
        writer.put(file("first.txt"))
    reader = IndexStore.open(tmp_path)
    assert (reader.totals().files, reader.is_in_place) == (1, True)
    may_write = True
    with IndexStore.open(tmp_path) as writer:
        may_write = False
        writer.put(file("second.txt"))
        assert not reader.is_in_place
        with IndexStore.open(tmp_path) as beside:
            assert (beside.totals().files, beside.is_in_place) == (2, True)
    assert not reader.is_in_place
    reader.close()


def test_a_search_is_not_to_blame_for_an_index_that_is_gone(
    tmp_path: Path, write_checkpoint: WriteCheckpoint
) -> None:
    model = load_model(str(write_checkpoint("bert")))

    async def scenario() -> None:
        async with AsyncEngine([model]) as engine:
            recipe = recipe_for(tmp_path, engine, model.info.name)
            with open_to_write(tmp_path, recipe) as store:
                store.put(file("fox.txt", dim=model.info.dim))
            index = IndexSearch(str(tmp_path), engine)
            assert await found(index) == 1
            (tmp_path / DATABASE).unlink()
            await refused(index, "index_not_found")
            IndexStore.create(tmp_path, RECIPE).close()  # of a model that is not served
            await refused(index, "index_mismatch")
            (tmp_path / DATABASE).write_bytes(b"something else" * 100)
            await refused(index, "storage_failure")
            open_to_write(tmp_path, recipe, rebuild=True).close()
            assert await found(index) == 0
            await index.close()

    async def found(index: IndexSearch) -> int:
        hits, _ = await index.search("fox", limit=5, ways="words", timeout_s=60)
        return len(hits)

    async def refused(index: IndexSearch, code: str) -> None:
        with pytest.raises(StorageFailure) as caught:
            await found(index)
        assert (caught.value.code, row_for(caught.value).http_status) == (code, 503)
        assert str(tmp_path) not in caught.value.message  # callers need not know the folder

    asyncio.run(scenario())
