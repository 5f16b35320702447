"""An index with records: what an edit of a long file reads, what it writes, and what it leaves."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engine.async_engine import AsyncEngine
from engine.errors import InvalidInput
from engine.model.embedding_model import EmbeddingModel
from service.cli import index as index_command
from service.errors import StorageFailure
from service.index.open import has_records, open_to_write
from service.index.update import IndexWriter, Progress, Summary, recipe_for
from service.index.watch import changes_of
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

LINE = "the quick brown fox jumps over number {} and {} while seven wizards box {}."
PARAGRAPHS = [
    " ".join(LINE.format(part, line, part * line) for line in range(4)) for part in range(90)
]
INSERTED = "attention over long documents costs the square of their length."


def page(paragraphs: list[str]) -> str:
    return "# The fox\n\n" + "\n\n".join(paragraphs)


@pytest.fixture
def model(write_checkpoint: WriteCheckpoint) -> EmbeddingModel:
    return calibrated(write_checkpoint("bert"), block_size=64, num_sinks=(1, 1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "docs"
    made.mkdir()
    (made / "long.md").write_text(page(PARAGRAPHS))
    (made / "short.md").write_text("# Short\n\nSeven wizards box.\n")
    return made


@asynccontextmanager
async def writing(
    folder: Path, place: Path, model: EmbeddingModel, *, records: bool = True
) -> AsyncIterator[IndexWriter]:
    place.mkdir(exist_ok=True)
    async with AsyncEngine([model]) as engine:
        recipe = recipe_for(folder, engine, model.info.name, records=records)
        with open_to_write(place, recipe) as store:
            yield IndexWriter(store, folder, engine)


def written(folder: Path, place: Path, model: EmbeddingModel) -> Summary:
    async def write() -> Summary:
        async with writing(folder, place, model) as writer:
            return await writer.update()

    return asyncio.run(write())


def rows(place: Path, select: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(place / "index.sqlite") as db:
        found = db.execute(select).fetchall()
    db.close()
    return found


PASSAGES = (
    "SELECT path, number, first, last, headings, substr(text, first + 1, last - first) FROM files"
    " JOIN chunks ON files.id = chunks.file ORDER BY path, number"
)
FOUND = (
    "SELECT path, number FROM words JOIN chunks ON words.rowid = chunks.id"
    " JOIN files ON files.id = chunks.file WHERE words MATCH '{}' ORDER BY 1, 2"
)


def test_an_edit_reads_the_segments_that_changed_and_writes_their_vectors(
    folder: Path, model: EmbeddingModel, tmp_path: Path
) -> None:
    place = tmp_path / "index"
    first = written(folder, place, model)
    assert first.segments == first.segments_read > 3
    assert has_records(place)
    assert len(rows(place, "SELECT file FROM records")) == 1  # the short file has none
    before = dict(rows(place, "SELECT id, vector FROM chunks"))
    (folder / "long.md").write_text(page([*PARAGRAPHS[:40], INSERTED, *PARAGRAPHS[41:]]))
    update = written(folder, place, model)
    assert (update.read, update.unchanged) == (1, 1)
    assert 0 < update.segments_read < update.segments
    assert 0 < update.tokens < first.tokens / 2
    after = dict(rows(place, "SELECT id, vector FROM chunks"))
    kept = [number for number, vector in after.items() if before.get(number) == vector]
    assert len(kept) == update.vectors_kept + 1  # and that of the short file
    assert update.vectors_written + update.vectors_kept == len(after) - 1
    # Passages and words are those of an index made anew.
    fresh = tmp_path / "fresh"
    written(folder, fresh, model)
    assert rows(place, PASSAGES) == rows(fresh, PASSAGES)
    for query in ("length", "fox", "wizards"):
        assert rows(place, FOUND.format(query)) == rows(fresh, FOUND.format(query))


def test_a_damaged_record_is_read_anew_and_a_removed_file_leaves_none(
    folder: Path, model: EmbeddingModel, tmp_path: Path
) -> None:
    place = tmp_path / "index"
    first = written(folder, place, model)
    with sqlite3.connect(place / "index.sqlite") as db:
        db.execute("UPDATE records SET record = substr(record, 1, 5000)")
    db.close()
    (folder / "long.md").write_text(page([*PARAGRAPHS, INSERTED]))
    update = written(folder, place, model)
    assert update.problems == {}
    assert update.segments_read == update.segments >= first.segments
    (folder / "long.md").unlink()
    assert written(folder, place, model).removed == 1
    assert rows(place, "SELECT count(*) FROM records") == [(0,)]


def test_an_index_without_records_gets_none(
    folder: Path, model: EmbeddingModel, tmp_path: Path
) -> None:
    async def write() -> Summary:
        async with writing(folder, tmp_path / "index", model, records=False) as writer:
            return await writer.update()

    assert asyncio.run(write()).segments == 0
    assert not has_records(tmp_path / "index")
    assert rows(tmp_path / "index", "SELECT count(*) FROM records") == [(0,)]


def test_an_index_from_before_records_is_written_on(
    folder: Path, model: EmbeddingModel, tmp_path: Path
) -> None:
    place = tmp_path / "index"

    async def write() -> Summary:
        async with writing(folder, place, model, records=False) as writer:
            return await writer.update()

    asyncio.run(write())
    with sqlite3.connect(place / "index.sqlite") as db:
        db.execute("DROP TABLE records")
        db.execute("UPDATE recipe SET content = json_remove(content, '$.records')")
    db.close()
    (folder / "short.md").write_text("# Short\n\nEight wizards box.\n")
    assert asyncio.run(write()).read == 1


def test_softmax_keeps_no_records(write_checkpoint: WriteCheckpoint, tmp_path: Path) -> None:
    from engine.model.embedding_model import load_model

    async def recipe() -> None:
        softmax = load_model(str(write_checkpoint("bert")))
        async with AsyncEngine([softmax]) as engine:
            recipe_for(tmp_path, engine, softmax.info.name, records=True)

    with pytest.raises(InvalidInput, match="softmax") as refused:
        asyncio.run(recipe())
    assert refused.value.code == "no_records"


def in_time(work: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(run())


def test_watching_follows_edits_and_not_the_index_itself(
    folder: Path, model: EmbeddingModel
) -> None:
    place = folder / "index"  # not hidden: what is written there must not be told

    async def watch() -> None:
        async with writing(folder, place, model) as writer:
            await writer.update()
            changes = changes_of(folder, place)
            told = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0.5)  # the watcher has begun
            (place / "noise").write_text("no file of the folder")
            (folder / ".hidden").write_text("neither")
            await asyncio.sleep(0.5)
            assert not told.done()
            (folder / "new.txt").write_text("Numbers 0 1 2 3.")
            await told
            assert (await writer.update()).changed_anything
            assert not (await writer.update()).changed_anything
            await changes.aclose()  # type: ignore[attr-defined]

    in_time(watch)
    assert ("new.txt",) in rows(place, "SELECT path FROM files")


def test_watching_misses_nothing_that_changes_during_the_first_update(
    folder: Path, model: EmbeddingModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "index"
    summaries: list[Summary] = []

    async def watch() -> None:
        async with writing(folder, place, model) as writer:
            update = writer.update

            async def updated(*arguments: Any) -> Summary:
                summaries.append(await update(*arguments))
                if len(summaries) == 1:
                    (folder / "new.txt").write_text("Numbers 0 1 2 3.")
                return summaries[-1]

            monkeypatch.setattr(writer, "update", updated)
            watching = asyncio.ensure_future(
                index_command._update_again_and_again(Namespace(json=True), writer)
            )
            while len(summaries) < 2:
                await asyncio.sleep(0.05)
            watching.cancel()
            await asyncio.wait({watching})

    in_time(watch)
    assert summaries[1].read == 1


def test_a_watched_folder_that_is_removed_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "watched"
    folder.mkdir()

    async def watch() -> None:
        told = asyncio.ensure_future(anext(changes_of(folder, tmp_path / "index")))
        await asyncio.sleep(0.5)  # the watcher has begun
        folder.rmdir()
        await told

    in_time(watch)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_watching_ends_if_the_index_is_gone(
    folder: Path, model: EmbeddingModel, *, is_replaced: bool
) -> None:
    place = folder / ".lln"

    async def watch() -> None:
        async with writing(folder, place, model) as writer:
            watching = asyncio.ensure_future(
                index_command._update_again_and_again(Namespace(json=True), writer)
            )
            while rows(place, "SELECT count(*) FROM files") != [(2,)]:
                await asyncio.sleep(0.1)
            if is_replaced:
                shutil.copy(place / "index.sqlite", place / "another")
                os.replace(place / "another", place / "index.sqlite")
            else:
                shutil.rmtree(place)
            with pytest.raises(StorageFailure, match="was deleted or replaced") as told:
                await watching
            assert told.value.code == "index_gone"

    in_time(watch)


def test_an_index_that_is_deleted_during_an_update_is_not_written_on(
    folder: Path, model: EmbeddingModel, tmp_path: Path
) -> None:
    place = tmp_path / "index"

    async def write() -> None:
        async with writing(folder, place, model) as writer:

            def delete(_: Progress) -> None:
                shutil.rmtree(place, ignore_errors=True)

            with pytest.raises(StorageFailure, match="was deleted or replaced"):
                await writer.update(delete)

    in_time(write)
    assert not place.exists()


@pytest.mark.parametrize("name", [b"watched", b"caf\xe9"])
def test_watching_goes_on_where_names_are_not_utf8(name: bytes, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(name)
    folder.mkdir()

    async def watch() -> None:
        changes = changes_of(folder, tmp_path / "index")
        told = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.5)  # the watcher has begun
        (folder / os.fsdecode(b"caf\xe9.txt")).write_text("the fox")
        await told
        await changes.aclose()  # type: ignore[attr-defined]

    in_time(watch)


def test_a_folder_that_is_gone_empties_no_index(
    folder: Path, model: EmbeddingModel, tmp_path: Path
) -> None:
    place = tmp_path / "index"
    written(folder, place, model)
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(InvalidInput, match="no longer there"):
        written(folder, place, model)
    assert len(rows(place, "SELECT path FROM files")) == 2
