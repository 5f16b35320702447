"""An index with records whose files are edited: what an update reads and writes, and how long.

    python -m benchmarks.search.index_updates --files 200 --changed 10 --out FILE

Files of corpora outside training, of all lengths, are indexed anew; a paragraph is changed in
some of them, and the index brought up to date. Then the same with other files, once undisturbed and
once killed while it runs and run again: both must end with the same rows, to the last bit.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.store import commit
from engine.evaluation.corpora import available, load_corpus

SEED = 11
SHORTEST, LONGEST = 300, 60_000
"""Characters of a file. Longer documents are cut."""

NEW = "The committee met on Tuesday to read the report, and asked for one figure more."
_ROWS = (
    "SELECT path, number, first, last, headings, vector, record FROM files"
    " JOIN chunks ON files.id = chunks.file LEFT JOIN records ON files.id = records.file"
    " ORDER BY path, number"
)


def main() -> None:
    options = _parser().parse_args()
    with TemporaryDirectory(prefix="lln-index-") as temporary:
        place = Path(temporary)
        found = measure(place, options.files, options.changed, options.short)
    found["commit"] = commit()
    for name, value in found.items():
        print(f"{name}: {value}")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


def measure(place: Path, files: int, changed: int, short: int) -> dict[str, Any]:
    folder, index = place / "docs", place / "index"
    paths = list(_written(folder, files, short))
    Random(SEED).shuffle(paths)
    anew = _indexed(folder, index)
    again = _indexed(folder, index)
    _edit(paths[:changed])
    update = _indexed(folder, index)
    copy = place / "copy"
    shutil.copytree(index, copy)
    _edit(paths[changed : 2 * changed])
    undisturbed = _indexed(folder, index)
    done = _killed(folder, copy, at_least=max(1, changed // 3))
    resumed = _indexed(folder, copy)
    return {
        "files": files,
        "longest_of_most": short,
        "changed": changed,
        "characters": sum(path.stat().st_size for path in paths),
        "index_bytes": (index / "index.sqlite").stat().st_size,
        "records_bytes": _rows(index, "SELECT coalesce(sum(length(record)), 0) FROM records")[0][0],
        "files_with_records": _rows(index, "SELECT count(*) FROM records")[0][0],
        "anew": anew,
        "unchanged": again,
        "update": update,
        "update_over_anew": update["seconds"] / anew["seconds"],
        "second_update": undisturbed,
        "files_done_before_kill": done,
        "after_kill": resumed,
        "same_rows_after_kill": _rows(index, _ROWS) == _rows(copy, _ROWS),
    }


def _written(folder: Path, count: int, short: int) -> Iterator[Path]:
    """Documents in the order of their text's hash, each a file. Nine of ten are cut at `short`."""
    documents = {
        sha256(one.body.encode()).hexdigest(): one
        for name in available(new=True)
        for one in load_corpus(name).documents
        if len(one.body) >= SHORTEST
    }
    folder.mkdir()
    if len(documents) < count:
        raise SystemExit(f"the corpora have {len(documents)} documents, and not {count}")
    for number, digest in enumerate(sorted(documents)[:count]):
        one = documents[digest]
        path = folder / f"{digest[:16]}.md"
        body = one.body[: short if number % 10 else LONGEST]
        path.write_text(f"# {one.title or one.name}\n\n{body}\n")
        yield path


def _edit(paths: list[Path]) -> None:
    """A paragraph in the middle third of each is another."""
    for path in paths:
        parts = path.read_text().split("\n\n")
        parts[Random(path.name).randrange(len(parts) // 3, 2 * len(parts) // 3 + 1)] = NEW
        path.write_text("\n\n".join(parts))


def _command(folder: Path, index: Path) -> list[str]:
    program = [sys.executable, "-m", "service.cli", "index", str(folder)]
    return [*program, "--index", str(index), "--records", "--json"]


def _indexed(folder: Path, index: Path) -> dict[str, Any]:
    started_at = time.perf_counter()
    done = subprocess.run(
        _command(folder, index), check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    summary: dict[str, Any] = json.loads(done.stdout)
    del summary["index"]
    return {"seconds": round(time.perf_counter() - started_at, 2), **summary}


def _killed(folder: Path, index: Path, *, at_least: int) -> int:
    """Kills an update once this many files are done, and tells how many were."""
    before = dict(_rows(index, "SELECT path, sha256 FROM files"))
    process = subprocess.Popen(
        _command(folder, index), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def num_done() -> int:
        now = dict(_rows(index, "SELECT path, sha256 FROM files"))
        return sum(now[path] != digest for path, digest in before.items())

    while process.poll() is None and num_done() < at_least:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return num_done()


def _rows(index: Path, select: str) -> list[tuple[Any, ...]]:
    database = sqlite3.connect(f"file:{index / 'index.sqlite'}", uri=True, timeout=30)
    try:
        return database.execute(select).fetchall()
    finally:
        database.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search.index_updates", description=__doc__
    )
    parser.add_argument("--files", type=int, default=2_000)
    parser.add_argument("--changed", type=int, default=100)
    parser.add_argument(
        "--short",
        type=int,
        default=LONGEST,
        help="characters of nine files in ten, as in a folder of notes (default: as long as any)",
    )
    parser.add_argument("--out", type=Path)
    return parser


if __name__ == "__main__":
    main()
