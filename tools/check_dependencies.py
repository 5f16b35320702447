"""Fails unless what is installed is what constraints.txt pins, and fits together.

    python tools/check_dependencies.py

It asks nobody, so it cannot know of advisories; `make audit` does.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import distributions
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"
# LLN itself, the installer, and what the PyTorch build of the machine brings: its wheel pins them.
_NOT_PINNED = re.compile(r"lln|pip|nvidia-.*|cuda-.*")


def main() -> int:
    problems = list(differences(installed(), pins()))
    for problem in problems:
        print(problem, file=sys.stderr)
    fits = subprocess.run([sys.executable, "-m", "pip", "check"]).returncode == 0
    return 0 if fits and not problems else 1


def differences(found: Iterable[tuple[str, str]], pinned: dict[str, str]) -> Iterator[str]:
    """A line for each package that is not pinned, or is there in another version."""
    for name, version in sorted(found):
        if _NOT_PINNED.fullmatch(name):
            continue
        if name not in pinned:
            yield f"{name} {version} is installed and not pinned in {CONSTRAINTS.name}"
        elif version.partition("+")[0] != pinned[name]:
            yield f"{name} {version} is installed, {CONSTRAINTS.name} pins {pinned[name]}"


def installed() -> Iterator[tuple[str, str]]:
    for distribution in distributions():
        yield _normalised(distribution.name), distribution.version


def pins() -> dict[str, str]:
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {_normalised(name): version.strip() for name, version in pairs}


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
