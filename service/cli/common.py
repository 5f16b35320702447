"""What the commands share: options, an engine, files to read, and output.

Commands import the engine when they run. `--help` and a misspelt setting answer without the seconds
that loading torch takes.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import json
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from engine.errors import InvalidInput
from engine.platform.files import standard_input
from service.environment import load_settings

if TYPE_CHECKING:
    from engine.async_engine import AsyncEngine

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Chosen: TypeAlias = argparse.Namespace
Result = TypeVar("Result")
Number = TypeVar("Number", int, float)


def add_command(
    commands: Commands, name: str, run: Callable[[Chosen], None], about: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=about, description=about)
    command.set_defaults(run=run, command=command)
    return command


def refuse_unknown(unknown: Sequence[str], command: argparse.ArgumentParser) -> NoReturn:
    """Ends with the usage of the command, where argparse would show that of `lln`."""
    options = re.findall(r"--[a-z-]+", command.format_usage())
    near: dict[str, None] = {}
    for name in unknown:
        near |= dict.fromkeys(difflib.get_close_matches(name, options, n=2, cutoff=0.7))
    advice = f"; did you mean {' or '.join(near)}?" if near else ""
    command.error(f"unrecognized arguments: {' '.join(unknown)}{advice}")


def add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON for programs")


def add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", default="default", help="a name of `lln models`, or a folder")


def numbers(value: str) -> list[int]:
    return _listed(value, int, "whole numbers")


def decimals(value: str) -> list[float]:
    return _listed(value, float, "numbers")


def shares(value: str) -> list[float]:
    return _listed(value, float, "numbers from 0 to 1")


def _listed(value: str, read: Callable[[str], Number], wanted: str) -> list[Number]:
    try:
        return [read(number) for number in value.split(",")]
    except ValueError:
        message = f"expected {wanted} separated by commas, got {value!r}"
        raise argparse.ArgumentTypeError(message) from None


def share(value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, got {value!r}")
    return found


def positive_numbers(value: str) -> list[int]:
    found = numbers(value)
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"expected numbers above 0, got {value!r}")
    return found


def positive_number(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {value!r}")
    return int(value)


def positive_gpus(value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = 0.0
    if not (0 < found <= 1 or (found > 1 and found.is_integer())):
        raise argparse.ArgumentTypeError(
            f"expected a part of a GPU or a whole number, got {value!r}"
        )
    return found


def names(value: str) -> list[str]:
    found = [name.strip() for name in value.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"expected names separated by commas, got {value!r}")
    return found


def path_of(value: str) -> Path:
    return Path(named(value))


def named(value: str) -> str:
    if not value:  # as of a variable that is not set; a path would take it for this folder
        raise argparse.ArgumentTypeError("the name of a file or folder is empty")
    return value


def with_engine(model: str, work: Callable[[AsyncEngine], Awaitable[Result]]) -> Result:
    """Loads one model, runs `work` with its engine, and returns the result."""
    config = load_settings().engine
    from engine.async_engine import AsyncEngine

    async def run() -> Result:
        async with AsyncEngine.load([model], config=config) as engine:
            return await work(engine)

    return asyncio.run(run())


def read_text(file: str | Path) -> str:
    """The text of a file, or of standard input for '-'."""
    if not file:  # as of a variable that is not set; a path would take it for this folder
        raise InvalidInput("the name of a file is empty", code="no_files", param="file")
    content = standard_input().read() if file == "-" else Path(file).read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        name = "standard input" if file == "-" else file
        raise InvalidInput(
            f"{name} is not text in UTF-8: invalid byte at {error.start}",
            code="not_utf8",
            param="file",
        ) from None


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CONTROL_OR_BREAK = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def printable(text: str, *, lines: bool = False) -> str:
    """What others wrote, without what a terminal would obey: the bytes of control characters as
    \\xNN, which no name of a file has for others. With `lines`, ends of lines and tabs stay."""
    if lines:
        text = text.replace("\r\n", "\n")
    found = _CONTROL if lines else _CONTROL_OR_BREAK
    return found.sub(lambda match: _escaped(match[0]), text)


def _escaped(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode())


def print_json(document: Any) -> None:
    print(json.dumps(document, ensure_ascii=False))


def print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())


def tell(line: str, *, end: str = "\n") -> None:
    """Prints progress to standard error; results go to standard output."""
    print(line, end=end, file=sys.stderr, flush=True)
