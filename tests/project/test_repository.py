"""The repository keeps its own promises: what its pages name exists, and nothing is left over."""

from __future__ import annotations

import ast
import re
import shutil
import stat
import subprocess
import tomllib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.longest_first import LONG_FILES, longest_first

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kernels", "engine", "service")
RESULTS = "benchmarks/results/"
FOLDERS = (*PACKAGES, "proto", "deploy", "docs", "examples", "benchmarks", "tests", "tools")
MERGE_SUFFIXES = {".orig", ".rej", ".bak", ".swp"}
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".proto", ".sh", ".json", ".txt"}
# What a match begins with comes first, and what may not stand before it afterwards: so Python skips
# quickly to where a match may begin, in all the results that are stored.
NOTES = ("TODO", "FIXME", "XXX", "HACK")
_ANY_NOTE = "|".join(rf"{note}(?<!\w{note})" for note in NOTES)
LEFTOVERS = re.compile(rf"(?:{_ANY_NOTE})\b")
PATHS_OF_ONE_MACHINE = re.compile(r"/(?<![\w.]/)(?:home/(?!lln\b)\w+|Users/\w+|work|root)/")


def tracked_files() -> Iterator[Path]:
    """What git knows, or would add; without git (a source archive), what is there."""
    if shutil.which("git") and (ROOT / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        paths = [ROOT / line for line in listing.stdout.splitlines()]
    else:
        inside = (path for package in PACKAGES for path in (ROOT / package).rglob("*"))
        paths = [*ROOT.glob("*"), *inside]
    yield from (path for path in paths if path.is_file())


PAGES = sorted(path for path in tracked_files() if path.suffix == ".md")


def text_files() -> Iterator[Path]:
    this_file = Path(__file__).resolve()  # it holds what it looks for
    files = (path for path in tracked_files() if path != this_file)
    yield from (path for path in files if path.suffix in TEXT_SUFFIXES)


def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def requirement_names(requirements: list[str]) -> set[str]:
    names = {re.split(r"[<>=;\[ ]", requirement)[0] for requirement in requirements}
    return names - {"lln"}


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize(
    ("pattern", "guilty"),
    [
        *((LEFTOVERS, f"# {note}: later") for note in NOTES),
        (PATHS_OF_ONE_MACHINE, "see /home/ann/lln"),
    ],
)
def test_the_patterns_can_match(pattern: re.Pattern[str], guilty: str) -> None:
    assert pattern.search(guilty)


@pytest.mark.parametrize(
    ("pattern", "innocent"),
    [
        *((LEFTOVERS, f"a{note} {note}s") for note in NOTES),
        *((PATHS_OF_ONE_MACHINE, text) for text in ("/home/lln/", "a/work/", "./root/")),
    ],
)
def test_the_patterns_spare_what_is_allowed(pattern: re.Pattern[str], innocent: str) -> None:
    assert not pattern.search(innocent)


@pytest.mark.parametrize("pattern", [LEFTOVERS, PATHS_OF_ONE_MACHINE], ids=["notes", "paths"])
def test_nothing_is_left_over(pattern: re.Pattern[str]) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in text_files()
        if (match := pattern.search(path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_editors_and_merges_leave_no_files() -> None:
    """Git may still list a file that is deleted; `tracked_files` does not."""
    assert [path for path in tracked_files() if path.suffix in MERGE_SUFFIXES] == []


def test_every_module_says_what_it_is() -> None:
    modules = [
        path
        for path in tracked_files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in PACKAGES
    ]
    generated = ROOT / "service" / "pb"
    silent = [
        path
        for path in modules
        if not path.is_relative_to(generated) and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_pages_name_exist(page: Path) -> None:
    """Paths in backticks that begin with one of our folders; results need not be stored yet."""
    named = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*\w)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists() and RESULTS not in name] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_make_targets_that_exist(page: Path) -> None:
    named = set(re.findall(r"(?:`|^|\n)make ([a-z-]+)", page.read_text()))
    assert named - make_targets() == set()


def anchors_of(page: Path) -> set[str]:
    """The names that GitHub gives the titles of a page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).replace(" ", "-").lower() for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text())
    for target, anchor in links:
        linked = page.parent / target if target else page
        assert linked.exists(), target
        if anchor and linked.suffix == ".md":
            assert anchor in anchors_of(linked), f"{target}#{anchor}"


def test_functions_in_the_flows_exist() -> None:
    """docs/architecture.md names a file, then what of it runs."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    flows = page[page.index("## Flows") : page.index("## One device")]
    steps = re.findall(r"`((?:kernels|engine|service)/[\w/]+\.py)`((?:,? `\w+`)*)", flows)
    assert len(steps) > 30
    missing = [
        f"{path}: {name}"
        for path, names in steps
        for name in re.findall(r"\w+", names)
        if not re.search(rf"^(?:async )?(?:def|class) {name}\b", (ROOT / path).read_text(), re.M)
    ]
    assert missing == []


def test_make_has_the_promised_targets() -> None:
    promised = {"serve", "test", "check", "format", "proto", "bench", "clean", "help"}
    assert promised <= make_targets()


def test_every_requirement_is_pinned() -> None:
    required = requirement_names(project()["dependencies"])
    for extra in project()["optional-dependencies"].values():
        required |= requirement_names(extra)
    assert required - set(pins()) == set()


def test_engine_requires_no_front_end() -> None:
    names = requirement_names(project()["dependencies"])
    assert names == {"torch", "numpy", "tokenizers", "safetensors", "huggingface-hub"}


def test_serving_needs_no_test_tools() -> None:
    extras = project()["optional-dependencies"]
    served = requirement_names(project()["dependencies"]) | requirement_names(extras["service"])
    assert served & (requirement_names(extras["test"]) - {"numpy"}) == set()
    assert served & requirement_names(extras["dev"]) == set()
    assert "triton" not in served


def test_constraints_refuse_the_other_kernels() -> None:
    assert "kernels<0" in (ROOT / "constraints.txt").read_text().splitlines()


def test_numpy_is_one_that_the_triton_interpreter_can_read() -> None:
    assert tuple(map(int, pins()["numpy"].split("."))) < (2, 4)


@pytest.mark.parametrize("script", ["tools/setup.sh", "tools/check_proto.sh", ".ci/run"])
def test_scripts_are_executable(script: str) -> None:
    path = ROOT / script
    assert path.stat().st_mode & stat.S_IXUSR
    shell = "bash" if "bash" in path.read_text().splitlines()[0] else "sh"
    subprocess.run([shell, "-n", str(path)], check=True)


def test_changelog_tells_of_this_version() -> None:
    assert f"## {project()['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_licence_is_the_declared_one() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0" in text
    assert project()["license"] == "Apache-2.0"


def test_files_that_workers_take_first_exist() -> None:
    assert [file for file in LONG_FILES if not (ROOT / file).is_file()] == []


def test_workers_take_long_files_first_and_each_as_a_whole(request: pytest.FixtureRequest) -> None:
    items = request.session.items
    taken = longest_first(items)
    assert {item.nodeid for item in taken} == {item.nodeid for item in items}
    files = [file for file, _ in groupby(item.nodeid.partition("::")[0] for item in taken)]
    assert len(files) == len(set(files))
    listed = [file for file in LONG_FILES if file in files]
    assert files[: len(listed)] == listed
