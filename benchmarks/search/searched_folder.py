"""A folder of real documents, and `lln index` on it, killed while it runs and run again."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.evaluation.corpora import available, load_corpus
from engine.training.data import Document
from service.index.store import DATABASE

_LONGEST = 4_000  # characters: the whole must be indexed within some minutes
_POLL_S = 0.05


@dataclass(frozen=True)
class Question:
    """A document's title, which its file does not hold."""

    query: str
    file: str

    @property
    def validates(self) -> bool:
        """Whether it is for choosing; the others judge what was chosen."""
        return hashlib.sha256(self.file.encode()).digest()[0] % 2 == 0


def write_folder(folder: Path, most: int) -> list[Question]:
    """Documents of corpora outside training, then of others until there are enough."""
    questions: list[Question] = []
    for corpus, document in _documents():
        if len(questions) == most:
            break
        digest = hashlib.sha256(document.body.encode()).hexdigest()[:16]
        file = f"{corpus}/{digest}.txt"
        path = folder / file
        if path.exists() or not document.title or len(document.body) > _LONGEST:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document.body)
        questions.append(Question(document.title, file))
    return questions


def _documents() -> Iterator[tuple[str, Document]]:
    for name in (*available(new=True), *available()):
        corpus = load_corpus(name)
        for document in sorted(corpus.documents, key=lambda one: _hash(one.body)):
            yield name, document


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@dataclass(frozen=True)
class Indexing:
    """What one run of the command did."""

    seconds: float
    stored: int
    """Files in the index when it ended."""
    summary: dict[str, Any]
    """What it printed; nothing if it was killed."""


def index(folder: Path, place: Path, *, threads: int, kill_at: int | None = None) -> Indexing:
    """Runs `lln index`, and kills it once so many files are stored."""
    command = [sys.executable, "-m", "service.cli", "index", str(folder)]
    environment = {name: value for name, value in os.environ.items() if name[:4] != "LLN_"}
    started_at = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--index", str(place), "--json"],
        env={**environment, "LLN_ENGINE__NUM_THREADS": str(threads)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    while kill_at is not None and process.poll() is None:
        if num_files(place) >= kill_at:
            process.send_signal(signal.SIGKILL)
        time.sleep(_POLL_S)
    printed, _ = process.communicate()
    seconds = time.perf_counter() - started_at
    if process.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"lln index ended with exit code {process.returncode}")
    return Indexing(seconds, num_files(place), json.loads(printed) if printed else {})


def num_files(place: Path) -> int:
    """Files in the index, while it may be written or not be there yet."""
    try:
        database = sqlite3.connect(f"file:{place / DATABASE}?mode=ro", uri=True)
        try:
            return int(database.execute("SELECT count(*) FROM files").fetchone()[0])
        finally:
            database.close()
    except sqlite3.Error:
        return 0
