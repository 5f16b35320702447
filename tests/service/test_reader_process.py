"""The process that reads what is large: small itself, replaced when it dies, ended on demand."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from service.large_json import read_large_json
from service.reader_process import ReaderEnded, ReaderProcess


@pytest.fixture
def reader() -> Iterator[ReaderProcess]:
    found = ReaderProcess()
    yield found
    found.kill()


def process_id(reader: ReaderProcess) -> int | None:
    return None if reader._process is None else reader._process.pid


def test_it_is_small(reader: ReaderProcess) -> None:
    """It imports what it needs to read, and no front end or engine."""
    assert reader.read(read_large_json, b'{"input": [1]}') == {"input": [1]}
    heavy = ("torch", "grpc", "fastapi", "pydantic")
    loaded = reader.read(eval, f"set({heavy}) & set(__import__('sys').modules)".encode())
    assert loaded == set()
    assert reader.read(eval, b"__import__('os').getpid()") == process_id(reader) != os.getpid()


def test_what_fails_there_fails_here(reader: ReaderProcess) -> None:
    with pytest.raises(ZeroDivisionError):
        reader.read(eval, b"1 / 0")
    assert reader.read(len, b"abc") == 3


def test_what_is_killed_there_is_done_here(reader: ReaderProcess) -> None:
    assert reader.read(len, b"abc") == 3
    first = process_id(reader)
    end_itself = f"(os := __import__('os')).getpid() == {first} and os.kill({first}, 9)"
    assert reader.read(eval, end_itself.encode()) is False
    assert reader.read(len, b"abc") == 3
    assert process_id(reader) != first


def test_it_ends_when_it_has_nothing_to_do_and_starts_again(reader: ReaderProcess) -> None:
    reader.end()
    assert reader.read(len, b"abc") == 3
    first = process_id(reader)
    assert first is not None
    reader.end()
    assert process_id(reader) is None
    with pytest.raises(ProcessLookupError):
        os.kill(first, signal.SIGCONT)
    assert reader.read(len, b"abcd") == 4


def test_who_waits_for_it_is_told_that_it_was_ended(reader: ReaderProcess) -> None:
    assert reader.read(len, b"abc") == 3
    found: list[BaseException] = []

    def wait() -> None:
        try:
            reader.read(eval, b"__import__('time').sleep(60)")
        except ReaderEnded as error:
            found.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.2)
    reader.kill()
    waiting.join(10)
    assert len(found) == 1


def test_a_process_that_is_ended_while_it_starts_does_not_work(reader: ReaderProcess) -> None:
    reader.kill()  # no process yet, as its thread may be about to start one
    with pytest.raises(ReaderEnded):
        reader.read(eval, b"__import__('time').sleep(5)")
