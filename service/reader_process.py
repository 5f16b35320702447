"""Reads large data in another process.

A parser holds the interpreter's lock while it works: half a second for five million token ids, in
which no request, probe or stream moves. A thread would not help.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from threading import Lock
from typing import TypeVar

Answer = TypeVar("Answer")

_NOT_DONE = b""
"""The process's answer for work that fails there, or whose result cannot be pickled."""


class ReaderEnded(Exception):
    """The process was ended while somebody waited for it."""


class ReaderProcess:
    """A process that works for one thread at a time. It starts with the first work."""

    def __init__(self) -> None:
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self._turn = Lock()
        self._was_killed = False

    def read(self, work: Callable[[bytes], Answer], data: bytes) -> Answer:
        """What `work` makes of the data. The process imports `work` by its name. If it fails there,
        or the system kills the process, perhaps for its memory, it runs here. Raises ReaderEnded
        after `kill`."""
        with self._turn:
            result = self._ask(work, data)
        if result != _NOT_DONE:
            answer: Answer = pickle.loads(result)
            return answer
        if self._was_killed:
            raise ReaderEnded
        return work(data)

    def _ask(self, work: Callable[[bytes], Answer], data: bytes) -> bytes:
        try:
            if self._pipe is None:
                self._pipe = self._start()
            self._pipe.send_bytes(pickle.dumps(work))
            self._pipe.send_bytes(data)  # apart: pickling would copy it
            return self._pipe.recv_bytes()
        except (EOFError, OSError):
            self._discard()
            return _NOT_DONE

    def _start(self) -> Connection:
        # A fork would copy the threads' locks in whatever state they are.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        # Once we close their end, only the process has it open: its death ends the pipe.
        with theirs:
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
        self._process = process
        if self._was_killed:  # by whoever found no process yet
            process.kill()
        return ours

    def end(self) -> None:
        """Ends the process when its work is done. The next work starts another."""
        with self._turn:
            self._discard()

    def kill(self) -> None:
        """Ends the process and its work, for good. Safe to call from any thread."""
        self._was_killed = True
        if (process := self._process) is not None:
            process.kill()

    def _discard(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = self._pipe = None


def _serve(pipe: Connection) -> None:
    """Runs in the process until the parent's end of the pipe closes, at its death at the latest."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal interrupts all processes
    with suppress(EOFError, OSError):
        while True:
            work, data = pipe.recv_bytes(), pipe.recv_bytes()
            pipe.send_bytes(_result(work, data))


def _result(work: bytes, data: bytes) -> bytes:
    try:
        return pickle.dumps(pickle.loads(work)(data), pickle.HIGHEST_PROTOCOL)
    except Exception:  # the parent meets it too; pickle, for one, nests less deeply than JSON
        return _NOT_DONE
