"""Ranks in threads of the test's process, and the texts that they read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from engine.errors import LLNError
from engine.execution.inputs import PreparedText
from engine.ranks.fleet import Fleet
from engine.ranks.place import RankPlace
from engine.ranks.worker import serve_rank
from engine.types import Span


class RankThread(threading.Thread):
    """A rank in a thread of this process."""

    def __init__(self, place: RankPlace, join_s: float = 30) -> None:
        super().__init__(daemon=True)
        self.place, self.join_s = place, join_s
        self.error: LLNError | None = None
        self.start()

    def run(self) -> None:
        try:
            serve_rank(self.place, join_s=self.join_s)
        except LLNError as error:
            self.error = error


@contextmanager
def starting(fleet: Fleet) -> Iterator[list[LLNError]]:
    """A fleet that starts in a thread, is stopped at the end, and what its start raised by then."""
    errors: list[LLNError] = []

    def start() -> None:
        try:
            fleet.start()
        except LLNError as error:
            errors.append(error)

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    try:
        yield errors
    finally:
        fleet.stop()
        thread.join(10)
        assert not thread.is_alive()


def some_text(length: int) -> PreparedText:
    ids = np.random.default_rng(length).integers(1_000, 30_000, length).astype(np.int32)
    chunks = [Span(at, min(at + 300, length)) for at in range(0, length, 256)]
    return PreparedText(
        ids=ids, spans=(Span(0, length), *chunks), chunks=(), num_tokens=length, dropped=None
    )


def eventually(what: Callable[[], object], within_s: float = 60) -> None:
    ends_at = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < ends_at, "it did not happen"
        time.sleep(0.01)
