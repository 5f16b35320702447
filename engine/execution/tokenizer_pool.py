"""Tokenises off the event loop, a step at a time, on threads of its own; tiny texts at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Thread
from time import perf_counter
from typing import TypeVar

from engine.errors import EngineUnavailable, QueueFull
from engine.platform.process import lower_priority
from engine.platform.turns import quick_turns
from engine.scheduling.admission import Throughput
from engine.steps import Answer, Steps, advance
from engine.text.tokenizer import start_parallel_threads

_TINY_CHARACTERS = 256
"""Work with at most this many characters takes the event loop no longer than handing it to a
thread, which takes as long again itself."""

SHORT_CHARACTERS = 65_536
"""Work with at most this many characters counts as short."""

_THREADS_PER_LANE = 2

T = TypeVar("T")


class TokenizerPool:
    """Runs work in steps for many callers.

    Short work has threads of its own, so that it never waits behind long work. Long work goes to
    the back of its queue after every step: several long texts are read side by side. When a caller
    leaves or its deadline passes, no further step of its work runs.

    The tokenizer library's threads, which do most of it, have a lower priority. Our own do not:
    they hold the interpreter's lock now and then, and one that the system puts aside while it does
    would hold up every request.
    """

    def __init__(self, *, max_characters: int) -> None:
        self.max_characters = max_characters
        self._short = ThreadPoolExecutor(_THREADS_PER_LANE, "lln-tokenizer")
        self._long = ThreadPoolExecutor(_THREADS_PER_LANE, "lln-tokenizer-long")
        self._long.submit(_start_library_threads)
        self._characters = 0  # of all work that has not ended
        self._rate = Throughput()
        self._closed = False

    async def run(self, steps: Steps[T], *, characters: int, is_admitted: bool = False) -> T:
        """Run the steps and return their answer.

        Raises QueueFull if the pool holds too many characters, unless the caller was admitted
        before: a call is accepted whole or not at all.
        """
        with self._holding(characters, is_admitted=is_admitted):
            while True:
                if is_admitted:  # a call may have thousands of tiny parts
                    await asyncio.sleep(0)
                if self._closed:
                    raise EngineUnavailable("The engine takes no work: it has stopped.")
                answer = await self._advance(steps, characters)
                if answer is not None:
                    return answer.value

    async def _advance(self, steps: Steps[T], characters: int) -> Answer[T] | None:
        if characters <= _TINY_CHARACTERS:
            return advance(steps)
        loop = asyncio.get_running_loop()
        if characters <= SHORT_CHARACTERS:
            return await loop.run_in_executor(self._short, advance, steps)
        return await loop.run_in_executor(self._long, _advance_long, steps)

    def close(self) -> None:
        """End all work after the steps that are queued, without waiting for them."""
        self._closed = True
        for lane in (self._short, self._long):
            lane.shutdown(wait=False)

    @contextmanager
    def _holding(self, characters: int, *, is_admitted: bool) -> Iterator[None]:
        if not is_admitted:
            self._check_room(characters)
        self._characters += characters
        started_at = perf_counter()
        try:
            yield
            self._rate.add(characters, perf_counter() - started_at)
        finally:
            self._characters -= characters

    def _check_room(self, characters: int) -> None:
        needed = self._characters + characters
        if needed <= self.max_characters or not self._characters:
            return
        excess = min(needed - self.max_characters, self._characters)
        raise QueueFull(
            f"{self._characters} characters wait to be tokenised, the limit is "
            f"{self.max_characters}; there is no room for {characters} more.",
            limit=self.max_characters,
            actual=needed,
            retry_after_s=max(self._rate.seconds_for(excess), 0.1),
        )


def _advance_long(steps: Steps[T]) -> Answer[T] | None:
    with quick_turns():
        return advance(steps)


def _start_library_threads() -> None:
    """They take their priority from the first thread that needs them."""

    def start() -> None:
        lower_priority()
        start_parallel_threads()

    starter = Thread(target=start, name="lln-tokenizer-start")
    starter.start()
    starter.join()
