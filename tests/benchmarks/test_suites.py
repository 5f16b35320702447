"""What benchmarks/README.md says that suites measure."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.__main__ import BY_NAME_ONLY, SUITES

README = (Path(__file__).parents[2] / "benchmarks" / "README.md").read_text("utf-8")


def test_every_suite_stands_in_the_table() -> None:
    assert set(re.findall(r"^\| `([\w-]+)` \|", README, re.MULTILINE)) == set(SUITES)


def test_those_that_run_by_name_only_are_named() -> None:
    [told] = re.findall(r"# all but (.*?), which run", " ".join(README.split()))
    assert set(re.findall(r"`([\w-]+)`", told)) == set(BY_NAME_ONLY)
