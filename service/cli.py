"""The command line: `lln COMMAND`; commands/ has a file for each."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from engine.errors import LLNError
from engine.process import prepare_process
from service.commands import (
    adapt,
    bench,
    claims,
    diagnose,
    embed,
    evaluate,
    figures,
    models,
    plan,
    serve,
    settings,
)
from service.errors import PortInUse
from service.settings import SettingsError
from service.version import version_of

COMMANDS = (
    *(serve, embed, plan, models, adapt, evaluate),
    *(bench, diagnose, claims, figures, settings),
)

_FAILED = 1
_MISUSED = 2
_UNHEARD = 141  # as a shell shows the end of who writes into a closed pipe


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0, 1 if it failed, 2 if it was misused, and
    more than 128 if it was cut short."""
    prepare_process()
    chosen = parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], None] = chosen.run
    try:
        run(chosen)
        if sys.stdout is not None:  # closed before the start (`>&-`), it has nothing to lose
            sys.stdout.flush()
    except BrokenPipeError:
        return _leave_unheard()
    except SettingsError as error:
        return _complain(error, _MISUSED)
    except OSError as error:
        return _complain(_in_words(error), _FAILED)
    except (LLNError, PortInUse) as error:
        return _complain(error, _FAILED)
    except KeyboardInterrupt:
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="lln", description="Embeddings of long documents, and diagnostics of attention."
    )
    made.add_argument("--version", action="version", version=f"lln {version_of('lln')}")
    commands = made.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return made


def _leave_unheard() -> int:
    """Whoever read the output has enough. What is left of it goes nowhere: Python would try once
    more at its end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _UNHEARD


def _in_words(error: OSError) -> str:
    """Of a file: which, and what is wrong with it."""
    is_of_a_file = error.filename is not None and error.strerror
    return f"{error.filename}: {error.strerror}" if is_of_a_file else str(error)


def _complain(error: Exception | str, code: int) -> int:
    for line in str(error).splitlines():
        print(f"lln: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
