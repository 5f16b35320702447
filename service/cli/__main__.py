"""The command line: `lln COMMAND`. It imports little, so that Ctrl-C finds it from the start."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType

_INTERRUPTED = 128 + signal.SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0, 1 if it failed, 2 for a wrong setting or
    option, and above 128 if it was interrupted."""
    try:
        return _imported_commands()(arguments)
    except KeyboardInterrupt:
        return _INTERRUPTED


def _imported_commands() -> Callable[[Sequence[str] | None], int]:
    """What runs a command. While it is imported, Ctrl-C ends the process at once: as an exception
    it could be raised within NumPy, which makes an error of its own of it."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    usual = signal.getsignal(signal.SIGINT)
    if usual is not signal.default_int_handler or not is_main_thread:
        return _import_commands()
    signal.signal(signal.SIGINT, _end)
    try:
        return _import_commands()
    finally:
        signal.signal(signal.SIGINT, usual)


def _import_commands() -> Callable[[Sequence[str] | None], int]:
    # pydantic reads this when the first model is defined. It would look through every installed
    # package for plugins, for a twentieth of a second. Programs that import our client keep theirs.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from engine.platform.process import prepare_process

    prepare_process()  # commands import NumPy before they begin
    from service.cli.command_line import run_command

    return run_command


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
