"""What the pages name exists: commands with their options, modules, variables and routes."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.__main__ import SUITES
from service.app import create_app
from service.cli.command_line import parser
from service.environment import load_settings, setting_rows

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / name / "README.md" for name in ("benchmarks", "kernels")),
]
BLOCK = re.compile(r"^```(?:sh|text)\b[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)

VARIABLES = {
    *(row.variable for row in setting_rows()),
    *("LLN_GPU_TESTS_DEVICE", "LLN_COMMIT"),  # of the tests, and of benchmarks outside a checkout
}


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands_in(block: str) -> Iterator[list[str]]:
    """The arguments of each `lln` in lines of a shell."""
    lines = block.replace("\\\n", " ").splitlines()
    for line in (line for line in lines if "lln " in line):
        words = shlex.shlex(line, posix=True, punctuation_chars="|;&<>")
        words.whitespace_split = True
        command: list[str] = []
        for word in [*words, ";"]:
            if not set(word) <= set("|;&<>"):
                command.append(word)
                continue
            while command and re.fullmatch(r"\w+=.*", command[0]):
                del command[0]  # a variable of the command
            if command[:1] == ["lln"]:
                yield command[1:]
            command = []


def all_commands(page: Path) -> list[list[str]]:
    return [
        arguments
        for block in BLOCK.findall(page.read_text("utf-8"))
        for arguments in commands_in(block)
    ]


def options_of() -> dict[str, set[str]]:
    [commands] = [
        action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)
    ]
    return {
        name: {option for action in command._actions for option in action.option_strings}
        for name, command in commands.choices.items()
    }


OPTIONS = options_of()


def strangers(arguments: list[str]) -> list[str]:
    """The command, if there is no such, or its options that it does not have."""
    name, *rest = arguments
    if name not in OPTIONS:
        return [name]
    return [word for word in rest if word.startswith("-") and word not in OPTIONS[name] | {"-"}]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_of_blocks_are_understood(page: Path) -> None:
    for arguments in all_commands(page):
        assert strangers(arguments) == [], arguments
        parser().parse_args(arguments)  # exits, and says why, if it is not


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_within_sentences_exist(page: Path) -> None:
    """They may be cut short, and have names in the place of numbers."""
    for text in re.findall(r"`lln ([a-z][^`\n]*)`", page.read_text("utf-8")):
        assert strangers(text.split()) == [], text


def test_commands_are_found() -> None:
    block = "LLN_INDEX=~/notes lln serve\nzcat a.gz | lln embed --from - \\\n  --out v.npy  # all"
    assert list(commands_in(block)) == [["serve"], ["embed", "--from", "-", "--out", "v.npy"]]
    assert len([found for page in PAGES for found in all_commands(page)]) > 15
    assert strangers(["embed", "--form", "-", "--out"]) == ["--form"]
    assert strangers(["serv"]) == ["serv"]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_variables_exist(page: Path) -> None:
    named = set(re.findall(r"\bLLN_[A-Z0-9_]*[A-Z0-9]\b", page.read_text("utf-8")))
    assert named - VARIABLES == set()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_modules_and_suites_exist(page: Path) -> None:
    run = re.findall(r"python3? -m ([\w.]+)((?: [a-z][\w-]*)*)", page.read_text("utf-8"))
    for module, words in run:
        assert find_spec(module) is not None, module
        if module == "benchmarks":
            assert set(words.split()) <= set(SUITES), words


@pytest.fixture(scope="module")
def routes() -> list[tuple[re.Pattern[str], set[str]]]:
    """Patterns of the paths that a server has, with their methods."""
    paths = create_app(load_settings()).openapi()["paths"]
    return [
        (re.compile(re.sub(r"{\w+}", "[^/]+", path)), {method.upper() for method in methods})
        for path, methods in paths.items()
    ]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_routes_exist(page: Path, routes: list[tuple[re.Pattern[str], set[str]]]) -> None:
    named = re.findall(
        r"(?:`|localhost:8000)(?:(GET|POST|PATCH|DELETE) )?(/(?:api|v1|v2)/[\w/{}.-]*[\w}])",
        page.read_text("utf-8"),
    )
    assert [
        (method, path)
        for method, path in named
        if not any(
            known.fullmatch(path) and (not method or method in methods) for known, methods in routes
        )
    ] == []
