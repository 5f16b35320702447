"""dropseed/h1spec: its checks are run as they are."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.conformance.verdicts import Address, Verdict


def verdicts(checkout: Path, address: Address) -> Iterator[Verdict]:
    sys.path.insert(0, str(checkout))
    try:
        sections = importlib.import_module("h1spec.tests").SECTIONS
        run_test = importlib.import_module("h1spec.runner").run_test
    finally:
        sys.path.remove(str(checkout))
    for section in sections:
        for test in section.tests:
            found = run_test(test.name, test.fn, tuple(address))
            yield Verdict(f"{section.name}: {test.name}", found.passed, found=found.detail)
