"""Reads a batch's files: what is small here, what is large in another process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from service.batches.answers import Found, read_answers
from service.batches.records import Batch, Counts
from service.batches.requests import Checked, Request, check_input, lines_of, read_request
from service.body_budget import LARGE_BODY_BYTES
from service.reader_process import ReaderProcess

Result = TypeVar("Result")


class Progress(NamedTuple):
    """What a batch's files of answers hold already."""

    answered: set[str]
    counts: Counts
    num_bytes: dict[Path, int]
    """Each file's bytes up to the first line that is not whole. What follows counts as not
    answered."""


class BatchReader:
    """Its methods block while they read, but leave the event loop free."""

    def __init__(self) -> None:
        self._process = ReaderProcess()

    def check(
        self, path: Path, endpoint: str, *, max_requests: int, max_line_bytes: int
    ) -> Checked:
        check = partial(
            check_input,
            endpoint=endpoint,
            max_requests=max_requests,
            max_line_bytes=max_line_bytes,
        )
        return self._read_file(check, path)

    def requests(self, path: Path, endpoint: str) -> Iterator[Request]:
        """The requests of a checked file."""
        read = partial(read_request, endpoint=endpoint)
        for _, line in lines_of(path):
            yield read(line) if len(line) < LARGE_BODY_BYTES else self._process.read(read, line)

    def progress(self, batch: Batch, output: Path, errors: Path) -> Progress:
        """Reads the answers that are there."""
        found = {path: self._answers(path) for path in (output, errors)}
        done, failed = found[output].custom_ids, found[errors].custom_ids
        counts = Counts(
            total=batch.counts.total,
            completed=len(done),
            failed=len(failed - done),
            tokens=found[output].tokens,
        )
        return Progress(
            done | failed, counts, {path: read.num_bytes for path, read in found.items()}
        )

    def _answers(self, path: Path) -> Found:
        return self._read_file(read_answers, path) if path.exists() else Found(set(), 0, 0)

    def _read_file(self, read: Callable[[bytes], Result], path: Path) -> Result:
        name = os.fsencode(path)
        if path.stat().st_size < LARGE_BODY_BYTES:
            return read(name)
        return self._process.read(read, name)

    def rest(self) -> None:
        """Gives the memory of the process back until there is another large file."""
        self._process.end()

    def close(self) -> None:
        """Ends the process at once: reads that are under way raise ReaderEnded."""
        self._process.kill()
