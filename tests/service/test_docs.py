"""Every example of README.md and docs/ that is marked to be run, run against a live server.

A block is marked by the word `run` after its language; `with=GROUP` beside it runs it with clients
that tools/install_clients.py puts apart, and `refused` says that the server answers with an error.
The addresses in it are the defaults, and are replaced by those of the test's server.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.service.clients.clients_apart import environment_with
from tests.service.processes import clean_environment
from tools import write_docs

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
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
    is_refused: bool = False


def examples() -> Iterator[Example]:
    for page in PAGES:
        text = page.read_text()
        for found in BLOCK.finditer(text):
            language, marks, code = found.groups()
            if "run" in marks.split():
                line = text.count("\n", 0, found.start()) + 1
                group = re.search(r"with=(\S+)", marks)
                yield Example(
                    page.name, line, language, code, group and group[1], "refused" in marks.split()
                )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: notes, `lln`, and a setting by which curl fails where the server refuses.

    The examples do not have that option: with it, curl does not show why.
    """
    home = tmp_path_factory.mktemp("home")
    (home / "curl").mkdir()
    (home / "curl" / ".curlrc").write_text("fail\n")
    (home / "notes").mkdir()
    (home / "notes" / "backups.md").write_text("# Backups\n\nThey are rotated every week.\n")
    (home / "notes" / "tea – café.txt").write_text("The price of tea rose.\n")
    (home / "lln").write_text(f'#!/bin/sh\nexec {sys.executable} -m service.cli "$@"\n')
    (home / "lln").chmod(0o755)
    return home


def run(example: Example, server: Any, home: Path) -> subprocess.CompletedProcess[str]:
    code = example.code.replace("http://localhost:8000", server.http_url)
    code = code.replace("localhost:50051", server.grpc_address)
    # A text of several passages is enough here.
    code = code.replace("[:40_000]", "[:8_000]").replace("[:82000]", "[:8200]")
    code = code.replace("python3 -c", f"{sys.executable} -c")
    command = [*COMMANDS[example.language], code]
    environment = clean_environment()
    if example.group is not None:
        command.remove("error")  # these clients warn
        command.remove("-W")
        environment = environment_with(example.group)
    environment["PATH"] = f"{home}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = os.pathsep.join((str(ROOT), environment.get("PYTHONPATH", "")))
    if example.language == "sh":
        environment["HOME"] = str(home)
    if not example.is_refused:
        environment["CURL_HOME"] = str(home / "curl")
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, env=environment
    )


@pytest.mark.long
@pytest.mark.parametrize("example", list(examples()), ids=lambda one: f"{one.page}:{one.line}")
def test_example(server: Any, home: Path, example: Example) -> None:
    if shutil.which(COMMANDS[example.language][0]) is None:
        pytest.skip(f"{COMMANDS[example.language][0]} is not installed")
    done = run(example, server, home)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example that shows nothing"


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("sh", "curl -sS http://localhost:8000/nowhere | cat"),
        ("python", "import engine; engine.nothing"),
        ("js", "throw new Error('no')"),
    ],
)
def test_a_wrong_example_fails(server: Any, home: Path, language: str, code: str) -> None:
    if shutil.which(COMMANDS[language][0]) is None:
        pytest.skip(f"{COMMANDS[language][0]} is not installed")
    assert run(Example("", 0, language, code), server, home).returncode != 0


def test_every_language_has_an_example() -> None:
    found = list(examples())
    assert {one.language for one in found} == set(COMMANDS)
    assert {one.page for one in found} >= {"README.md", "api.md", "clients.md", "search.md"}
    assert len(found) > 40


def test_tables_are_what_the_code_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which has imported what they are made of."""
    monkeypatch.setattr("sys.argv", ["write_docs.py", "--check"])
    write_docs.main()  # exits if one is not
