"""Every example of docs/ that is marked to be run, run against a live server.

A block is marked by the word `run` after its language; `with=GROUP` beside it runs it with clients
that tools/install_clients.py puts apart. The addresses in it are the defaults, and are replaced by
those of the test's server.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.service.clients_apart import environment_with
from tools import write_docs

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = {
    "sh": ("bash", "-euo", "pipefail", "-c"),
    "python": (sys.executable, "-W", "error", "-c"),
    "js": ("node", "--input-type=module", "--eval"),
}


class Example(NamedTuple):
    page: str
    line: int
    language: str
    code: str
    group: str | None = None
    """Of clients that are installed apart."""


def examples() -> Iterator[Example]:
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text()
        for found in BLOCK.finditer(text):
            language, marks, code = found.groups()
            if "run" in marks.split():
                line = text.count("\n", 0, found.start()) + 1
                group = re.search(r"with=(\S+)", marks)
                yield Example(page.name, line, language, code, group and group[1])


def run(example: Example, server: Any) -> subprocess.CompletedProcess[str]:
    code = example.code.replace("http://localhost:8000", server.http_url)
    code = code.replace("localhost:50051", server.grpc_address)
    code = code.replace("[:40_000]", "[:8_000]")  # a text of several passages is enough here
    command = [*COMMANDS[example.language], code]
    environment = None
    if example.group is not None:
        command.remove("error")  # these clients warn
        command.remove("-W")
        environment = environment_with(example.group)
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, env=environment
    )


@pytest.mark.parametrize("example", list(examples()), ids=lambda one: f"{one.page}:{one.line}")
def test_example(server: Any, example: Example) -> None:
    if shutil.which(COMMANDS[example.language][0]) is None:
        pytest.skip(f"{COMMANDS[example.language][0]} is not installed")
    done = run(example, server)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example that shows nothing"


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("sh", "curl -sf http://localhost:8000/nowhere | cat"),
        ("python", "import engine; engine.nothing"),
        ("js", "throw new Error('no')"),
    ],
)
def test_a_wrong_example_fails(server: Any, language: str, code: str) -> None:
    if shutil.which(COMMANDS[language][0]) is None:
        pytest.skip(f"{COMMANDS[language][0]} is not installed")
    assert run(Example("", 0, language, code), server).returncode != 0


def test_every_language_has_an_example() -> None:
    found = list(examples())
    assert {one.language for one in found} == set(COMMANDS)
    assert len(found) > 12


def test_tables_are_what_the_code_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which has imported what they are made of."""
    monkeypatch.setattr("sys.argv", ["write_docs.py", "--check"])
    write_docs.main()  # exits if one is not
