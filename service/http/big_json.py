"""Large JSON bodies, parsed in a process of their own.

A parser holds the interpreter's lock for as long as it takes, which for five million token ids is
half a second in which no other request, probe or stream moves. A thread would not help. What
comes back is quick to take over: token ids come as arrays, whose bytes are copied and not counted.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, NamedTuple

import numpy as np
import orjson

from service.errors import UnreadableBody

LARGE = 1_000_000
"""Bytes from which on the way to another process and back is worth it."""

_MANY_IDS = 10_000

_NONE = b""  # an answer that says: not by this process


class Unreadable(NamedTuple):
    """Why a body could not be read; exceptions of ours do not travel between processes."""

    message: str
    code: str
    actual: int

    def error(self) -> UnreadableBody:
        return UnreadableBody(self.message, code=self.code, actual=self.actual)


def parse(body: bytes) -> Any:
    """The document, or Unreadable."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return _unreadable(body, error)


def _unreadable(body: bytes, error: orjson.JSONDecodeError) -> Unreadable:
    try:
        body.decode()
    except UnicodeDecodeError as broken:
        message = f"the body is not UTF-8: byte {body[broken.start]:#04x} at {broken.start}"
        return Unreadable(message, "invalid_utf8", broken.start)
    if "surrogate" in error.msg:
        message = f"the body has half of a surrogate pair at character {error.pos}"
        return Unreadable(message, "invalid_unicode", error.pos)
    return Unreadable(f"the body is not JSON: {error}", UnreadableBody.code, error.pos)


class BigJson:
    """Parses here what is small and elsewhere what is large."""

    def __init__(self) -> None:
        self._reader = _Reader()
        # Its one thread is the lock: whoever waits no longer leaves a conversation that is
        # finished all the same, and the next one has its own answer.
        self._thread: ThreadPoolExecutor | None = None

    async def parse(self, body: bytes) -> Any:
        """The document. Raises UnreadableBody."""
        found = parse(body) if len(body) < LARGE else await self._parse_elsewhere(body)
        if isinstance(found, Unreadable):
            raise found.error()
        return found

    async def _parse_elsewhere(self, body: bytes) -> Any:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "big-json")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._reader.parse, body)

    def close(self) -> None:
        if self._thread is not None:
            self._reader.kill()  # what it still reads, nobody waits for
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._reader, self._thread = _Reader(), None


class _Reader:
    """A process that parses, for one thread. It starts with the first body."""

    def __init__(self) -> None:
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None

    def parse(self, body: bytes) -> Any:
        """The document, or Unreadable."""
        try:
            answer = self._ask(body)
        except (EOFError, OSError):  # killed, perhaps for its memory
            self.end()
            answer = _NONE
        return parse(body) if answer == _NONE else pickle.loads(answer)

    def _ask(self, body: bytes) -> bytes:
        if self._pipe is None:
            self._pipe = self._start()
        self._pipe.send_bytes(body)
        return self._pipe.recv_bytes()

    def _start(self) -> Connection:
        # A fork would copy the threads' locks in whatever state they are.
        context = multiprocessing.get_context("spawn")
        ours, its = context.Pipe()
        # Once its end is closed here, nobody but the process holds it: its death ends the pipe.
        with its:
            process = context.Process(target=_answer, args=(its,), daemon=True)
            process.start()
        self._process = process
        return ours

    def kill(self) -> None:
        """From any thread."""
        if (process := self._process) is not None:
            process.kill()

    def end(self) -> None:
        """So that the next body starts another."""
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = self._pipe = None


def _answer(pipe: Connection) -> None:
    """Until the parent's end of the pipe closes, as it does with the parent, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts all processes
    with suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(_pickled(pipe.recv_bytes()))


def _pickled(body: bytes) -> bytes:
    try:
        return pickle.dumps(_parse_for_another_process(body), pickle.HIGHEST_PROTOCOL)
    except (MemoryError, RecursionError):  # pickle goes less deep than JSON
        return _NONE


def _parse_for_another_process(body: bytes) -> Any:
    document = parse(body)
    if isinstance(document, dict):
        return {name: _with_arrays(value) for name, value in document.items()}
    return document


def _with_arrays(value: Any) -> Any:
    """Long lists of token ids, alone or in a list of inputs, as arrays."""
    if not isinstance(value, list):
        return value
    if _are_many_ids(value):
        return np.array(value, np.int64)
    return [np.array(item, np.int64) if _are_many_ids(item) else item for item in value]


def _are_many_ids(value: Any) -> bool:
    return (
        isinstance(value, Sequence)
        and len(value) >= _MANY_IDS
        and all(type(item) is int and -(2**63) <= item < 2**63 for item in value)
    )
