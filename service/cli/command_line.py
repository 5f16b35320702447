"""All commands with their options, and what becomes of their errors."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from io import TextIOWrapper
from typing import Any, TextIO, cast

from engine.errors import LLNError
from engine.platform.files import named_in_errors
from service.cli.adapt import add_adapt
from service.cli.attention import add_claims, add_diagnose, add_figures
from service.cli.average import add_average
from service.cli.bench import add_bench
from service.cli.common import printable, refuse_unknown
from service.cli.embed import add_embed, add_models, add_plan
from service.cli.evaluate import add_evaluate
from service.cli.experiment import add_experiment
from service.cli.export import add_export
from service.cli.index import add_index, add_search, add_watch
from service.cli.serve import add_serve, add_settings
from service.errors import PortInUse
from service.settings import SettingsError
from service.version import version_of

COMMANDS = (
    *(add_serve, add_embed, add_plan, add_models, add_adapt, add_average, add_export),
    *(add_index, add_watch, add_search),
    *(add_evaluate, add_experiment, add_bench),
    *(add_diagnose, add_claims, add_figures, add_settings),
)

_FAILED = 1
_MISUSED = 2
_BROKEN_PIPE = 141  # 128 + SIGPIPE
_OUTPUT = "standard output"


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code. Ctrl-C is the caller's to catch."""
    if isinstance(sys.stdout, TextIOWrapper):  # names of files may be in no encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    chosen, unknown = parser().parse_known_args(arguments)
    if unknown:
        refuse_unknown(unknown, chosen.command)
    run: Callable[[argparse.Namespace], None] = chosen.run
    try:
        with _named_output():
            run(chosen)
            if sys.stdout is not None:  # None if it was closed from the start (`>&-`)
                sys.stdout.flush()
    except BrokenPipeError:  # the reader has enough
        _drop_output()
        return _BROKEN_PIPE
    except SettingsError as error:
        return _report(str(error), _MISUSED)
    except OSError as error:
        if error.filename == _OUTPUT:
            _drop_output()
        return _report(system_message(error), _FAILED)
    except (LLNError, PortInUse) as error:
        return _report(str(error), _FAILED)
    return 0


class _NamedOutput:
    """Standard output, with errors that name it: its disk may be full, as another's may."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        with named_in_errors(_OUTPUT):
            return self._file.write(text)

    def flush(self) -> None:
        with named_in_errors(_OUTPUT):
            self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _named_output() -> AbstractContextManager[object]:
    if sys.stdout is None:
        return nullcontext()
    return redirect_stdout(cast("TextIO", _NamedOutput(sys.stdout)))


def _drop_output() -> None:
    """Python would write what is left once more at exit, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def system_message(error: OSError) -> str:
    """What the system refused, and for which file. Copying is about two: either may be at fault."""
    files = " -> ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    return f"{files}: {error.strerror}" if files and error.strerror else str(error)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="lln", description="Embeddings of long documents, and diagnostics of attention."
    )
    made.add_argument("--version", action="version", version=f"lln {version_of('lln')}")
    commands = made.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    return made


def _report(message: str, code: int) -> int:
    for line in message.splitlines():
        print(f"lln: {printable(line)}", file=sys.stderr)
    return code
