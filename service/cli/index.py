"""`lln index`, `lln watch` and `lln search`."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import InvalidInput
from service.cli.common import (
    Chosen,
    Commands,
    add_command,
    add_json,
    add_model,
    path_of,
    positive_number,
    print_json,
    printable,
    share,
    tell,
    with_engine,
)
from service.cli.progress import ProgressLine
from service.index.place import PLACE, index_folder, nearest_index

if TYPE_CHECKING:
    from engine.async_engine import AsyncEngine
    from service.index.search import Hit
    from service.index.store import IndexStore
    from service.index.update import IndexWriter, Progress, Summary


MAX_STALENESS = 0.01


def add_index(commands: Commands) -> None:
    command = add_command(
        commands, "index", _index, "index a folder for `lln search`, or bring its index up to date"
    )
    _add_place(command)
    command.add_argument(
        "--rebuild", action="store_true", help="delete the index and make a new one"
    )
    add_json(command)


def add_watch(commands: Commands) -> None:
    command = add_command(
        commands, "watch", _watch, "keep the index of a folder up to date while its files change"
    )
    _add_place(command)
    command.set_defaults(rebuild=False)
    add_json(command)


def _add_place(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", type=path_of, metavar="FOLDER")
    command.add_argument(
        "--index",
        type=path_of,
        metavar="DIR",
        help=f"folder of the index (default: {PLACE} in FOLDER)",
    )
    command.add_argument(
        "--records",
        action=argparse.BooleanOptionalAction,
        help="keep records of long files, so that only what changed in them is read again; takes "
        "about 100 bytes a token (default: as the index was made; for a new one, no)",
    )
    command.add_argument(
        "--max-staleness",
        type=share,
        default=MAX_STALENESS,
        metavar="X",
        help="with records: read passages again whose vectors may be further than this from a "
        f"fresh reading, as 1 - cosine (default: {MAX_STALENESS})",
    )
    add_model(command)


def add_search(commands: Commands) -> None:
    command = add_command(commands, "search", _search, "search an indexed folder")
    command.add_argument("query", metavar="QUERY")
    command.add_argument(
        "--index",
        type=path_of,
        metavar="DIR",
        help="an indexed folder, or the folder of its index (default: the nearest index in this "
        "folder or those above it)",
    )
    command.add_argument(
        "-n", "--limit", type=positive_number, default=5, help="passages to print (default: 5)"
    )
    command.add_argument(
        "--by",
        choices=("both", "words", "vectors"),
        default="both",
        help="find passages by their words, by their vectors, or by both (the default)",
    )
    add_json(command)


def _index(chosen: Chosen) -> None:
    _write(chosen, _update)


def _watch(chosen: Chosen) -> None:
    _write(chosen, _update_again_and_again)


def _write(chosen: Chosen, work: Callable[[Chosen, IndexWriter], Awaitable[None]]) -> None:
    """Opens the index as its only writer."""
    from engine.checkpoint.locate import lasting_name
    from engine.platform.locks import writers_lock
    from service.index.open import has_records, open_to_write
    from service.index.update import IndexWriter, recipe_for

    folder: Path = chosen.folder.resolve()
    if not folder.is_dir():
        raise InvalidInput(f"{chosen.folder} is not a folder", param="folder")
    place = (chosen.index or folder / PLACE).resolve()
    place.mkdir(parents=True, exist_ok=True)
    model = lasting_name(chosen.model)  # it is searched from other folders

    async def write(engine: AsyncEngine) -> None:
        records = has_records(place) if chosen.records is None else chosen.records
        recipe = recipe_for(folder, engine, model, records=records)
        with open_to_write(place, recipe, rebuild=chosen.rebuild) as store:
            await work(chosen, IndexWriter(store, folder, engine, chosen.max_staleness))

    with writers_lock(place / "lock", f"the index in {place}"):
        with_engine(model, write)


async def _update(chosen: Chosen, writer: IndexWriter) -> None:
    line = ProgressLine()

    def report(progress: Progress) -> None:
        line.show(
            f"{progress.files_done} of {progress.files_total} files",
            done=progress.bytes_done,
            total=progress.bytes_total,
            tokens=progress.tokens,
        )

    summary = await writer.update(report)
    line.end()
    _print_summary(chosen, summary, writer.place)


async def _update_again_and_again(chosen: Chosen, writer: IndexWriter) -> None:
    from service.index.watch import changes_of

    changes = changes_of(writer.folder, writer.place)
    # It watches from here on: the first update may take an hour, in which files change.
    change = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    await _update(chosen, writer)
    tell(f"watching {writer.folder}; stop with Ctrl-C")
    while True:
        await change
        summary = await writer.update()
        if summary.changed_anything:
            _print_summary(chosen, summary, writer.place)
        change = asyncio.ensure_future(anext(changes))


def _print_summary(chosen: Chosen, summary: Summary, place: Path) -> None:
    for path, reason in summary.problems.items():
        tell(printable(f"not read: {path}: {reason}"))
    if chosen.json:
        print_json({"index": str(place), **asdict(summary)})
    else:
        print("\n".join(_summary_lines(summary)))
    sys.stdout.flush()


def _summary_lines(summary: Summary) -> Iterator[str]:
    yield (
        f"{summary.read} files read ({summary.tokens:,} tokens), {summary.unchanged} unchanged, "
        f"{summary.moved} moved, {summary.removed} removed, {summary.not_text} without text, "
        f"{len(summary.problems)} not readable"
    )
    if summary.segments:
        yield (
            f"long files: {summary.segments_read} of {summary.segments} segments read; of all "
            f"files read: {summary.vectors_written} vectors written, {summary.vectors_kept} kept"
        )


def _search(chosen: Chosen) -> None:
    from service.index.open import open_to_read

    given: Path | None = chosen.index
    place = nearest_index(Path.cwd()) if given is None else index_folder(given)
    with open_to_read(place) as store:
        hits = _hits(chosen, store)
        if chosen.json:
            for hit in hits:
                print_json(hit.document())
        else:
            _print_hits(hits)


def _hits(chosen: Chosen, store: IndexStore) -> list[Hit]:
    from service.index.search import Searcher, check_query

    check_query(chosen.query)  # before a model is loaded
    searcher = Searcher(store)
    if chosen.by == "words":
        return searcher.search(chosen.query, None, limit=chosen.limit, ways="words")

    async def vector(engine: AsyncEngine) -> Any:
        from service.index.open import served_model

        served_model(store.recipe, engine)
        (found,) = await engine.embed([chosen.query])
        return found.vector

    query = with_engine(store.recipe.model, vector)
    return searcher.search(chosen.query, query, limit=chosen.limit, ways=chosen.by)


_BOLD, _DIM, _PLAIN = "\033[1m", "\033[2m", "\033[0m"


def _print_hits(hits: list[Hit]) -> None:
    if not hits:
        print("nothing found")
    is_coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = shutil.get_terminal_size((100, 24)).columns
    for number, hit in enumerate(hits, start=1):
        passage = hit.passage
        page = f", page {passage.page}" if passage.page else ""
        start, end = passage.characters
        head = printable(f"{number}. {passage.path}{page}, characters {start} to {end}")
        print(f"{_BOLD}{head}{_PLAIN}" if is_coloured else head)
        print(printable(passage.text[: 8 * width], lines=True))
        print()
