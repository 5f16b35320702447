"""Processes of `lln`, forked from one that has already imported it.

Tests of how a new interpreter starts and ends run `python -m service.cli`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.forked import forking
from tests.prices import prices_folder, share_prices


def clean_environment(**settings: str) -> dict[str, str]:
    """The environment without settings of the developer's own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LLN_")}
    return kept | settings


class ForkedProcess:
    """`lln` with these arguments, with the part of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdout: Path,
        stderr: Path,
        stdin: Path = Path(os.devnull),
    ) -> None:
        files = (stdin, stdout, stderr)
        self._process = forking().Process(
            target=_run, args=(list(arguments), dict(environment), files, prices_folder())
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None, "it has been started"
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("lln", timeout)
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        if self._process.is_alive():
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def unheard(*arguments: str) -> ForkedProcess:
    """A command whose output nobody reads."""
    nowhere = Path(os.devnull)
    return ForkedProcess(arguments, clean_environment(), stdout=nowhere, stderr=nowhere)


def lln(*arguments: str, stdin: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, as `subprocess.run` would."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("stdin", "stdout", "stderr")]
        files[0].write_text(stdin)
        process = ForkedProcess(
            arguments,
            clean_environment(**settings),
            stdin=files[0],
            stdout=files[1],
            stderr=files[2],
        )
        code = process.wait(120)
        printed, complained = (file.read_text() for file in files[1:])
    return subprocess.CompletedProcess(["lln", *arguments], code, printed, complained)


def _run(
    arguments: list[str],
    environment: dict[str, str],
    files: tuple[Path, Path, Path],
    prices: Path,
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for number, (path, flags) in enumerate(zip(files, (os.O_RDONLY, append, append), strict=True)):
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False, buffering=1)
    share_prices(prices)

    from service.cli.__main__ import main

    sys.exit(main(arguments))
