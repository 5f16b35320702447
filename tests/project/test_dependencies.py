"""The check that what is installed is what is pinned can fail, and reads what it should."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def check() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "check_dependencies.py"))


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (("numpy", "2.3.5"), None),
        (("torch", "2.13.0+cpu"), None),
        (("nvidia-cublas", "13.1"), None),
        (("numpy", "2.4.0"), "numpy 2.4.0 is installed, constraints.txt pins 2.3.5"),
        (("left-pad", "1.0"), "left-pad 1.0 is installed and not pinned in constraints.txt"),
    ],
)
def test_differences(check: dict[str, Any], found: tuple[str, str], complaint: str | None) -> None:
    pinned = {"numpy": "2.3.5", "torch": "2.13.0"}
    expected = [] if complaint is None else [complaint]
    assert list(check["differences"]([found], pinned)) == expected


def test_pins_and_installed_packages_go_by_the_same_names(check: dict[str, Any]) -> None:
    pinned = check["pins"]()
    assert {"torch", "ruamel-yaml", "jsonschema-rs", "typing-extensions"} <= set(pinned)
    assert dict(check["installed"]())["pytest"] == pinned["pytest"]
