"""Large JSON bodies, parsed in a process of their own.

A parser holds the interpreter's lock for as long as it takes, which for five million token ids is
half a second in which no other request, probe or stream moves. A thread would not help. What
comes back is quick to take over: token ids come as arrays, whose bytes are copied and not counted.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import numpy as np
import orjson

from service.errors import UnreadableBody

LARGE = 1_000_000
"""Bytes from which on the way to another process and back is worth it."""

_MANY_IDS = 10_000


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
        self._pool: ProcessPoolExecutor | None = None

    async def parse(self, body: bytes) -> Any:
        """The document. Raises UnreadableBody."""
        found = parse(body) if len(body) < LARGE else await self._parse_elsewhere(body)
        if isinstance(found, Unreadable):
            raise found.error()
        return found

    async def _parse_elsewhere(self, body: bytes) -> Any:
        if self._pool is None:
            # A fork would copy the threads' locks in whatever state they are.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_serve_the_parent)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, _parse_for_another_process, body)
        except BrokenProcessPool:  # killed, perhaps for its memory
            self.close()
            return parse(body)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _serve_the_parent() -> None:
    """A terminal interrupts all processes; it is the server's end, of whatever kind, that is the
    end of this one too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """A server that leaves at once, or is killed, has no time to tell. The pipe would not tell
    either: this process holds both of its ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "this runs in processes that a server has started"
    parent.join()
    os._exit(0)


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
