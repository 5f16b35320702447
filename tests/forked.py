"""Processes forked from one that has already imported the project: importing torch takes seconds.

A forked process has an environment, files, signals and an exit code of its own. It cannot show that
a new interpreter starts and ends well, and what is read when torch is imported was read before.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext

_IMPORTED = [
    "tests.service.processes",
    "service.cli.command_line",
    "service.server",
    "engine.engine",
]


def forking() -> ForkServerContext:
    """All use one process to fork from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context


def printed_by_fork(code: str, *arguments: str, **environment: str) -> str:
    """What this program prints with these variables set."""
    received, sent = forking().Pipe(duplex=False)
    process = forking().Process(
        target=_run, args=(code, arguments, {**os.environ, **environment}, sent)
    )
    process.start()
    sent.close()
    try:
        printed: str = received.recv()
    except EOFError:
        raise AssertionError("the program failed: see what it wrote to standard error") from None
    finally:
        process.join()
    return printed


def _run(
    code: str, arguments: Sequence[str], environment: dict[str, str], sent: Connection[str, None]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *arguments]
    with redirect_stdout(io.StringIO()) as printed:
        exec(code, {"__name__": "__main__"})
    sent.send(printed.getvalue())
