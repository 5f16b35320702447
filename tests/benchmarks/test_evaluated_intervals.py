"""The intervals that the pages state are those of stored results."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
CARDS = ROOT / "engine" / "checkpoint" / "calibrations" / "README.md"
PAGES = [ROOT / "README.md", CARDS, *sorted((ROOT / "docs").rglob("*.md"))]
STATED = re.compile(
    r"([+-]?\d\.\d{3}) \[([+-]?\d\.\d{3}), ([+-]?\d\.\d{3})\]( \(no longer stored\))?"
)
ROUNDING = 0.00056  # results have four decimals, pages three

Interval = tuple[float, float, float]
Stored = dict[tuple[int, ...], set[Interval]]  # by thousandths


def intervals_of(content: str) -> set[Interval]:
    found: set[Interval] = set()

    def note(part: dict[str, Any]) -> None:
        for interval in (
            (part.get("mean"), part.get("low"), part.get("high")),
            (part.get("value"), *(part.get("spread") or ())),  # a row of a suite
            tuple(part.get("minus plain", ())),  # of the example of contextual chunks
        ):
            if len(interval) == 3 and all(isinstance(value, float) for value in interval):
                found.add(interval)

    json.loads(content, object_hook=note)
    return found


@pytest.fixture(scope="module")
def stored() -> Stored:
    by_thousandths: Stored = defaultdict(set)
    results = [*(RESULTS / "training").glob("readings*.json"), *(RESULTS / "living").glob("*.json")]
    results += (RESULTS / "experiments").glob("selectivity*/result.json")
    results += [*RESULTS.glob("*.json"), *(RESULTS / "examples").glob("*.json")]
    for path in results:
        for interval in intervals_of(path.read_text()):
            by_thousandths[thousandths(interval)].add(interval)
    return by_thousandths


def thousandths(interval: Interval) -> tuple[int, ...]:
    return tuple(round(1000 * bound) for bound in interval)


def is_stored(stated: Interval, stored: Stored) -> bool:
    around = product(*((nearest - 1, nearest, nearest + 1) for nearest in thousandths(stated)))
    return any(
        all(abs(one - other) <= ROUNDING for one, other in zip(stated, interval, strict=True))
        for place in around
        for interval in stored.get(place, ())
    )


def unfounded(page: str, stored: Stored) -> Iterator[str]:
    """What a page states that no result has; a loss without a sign is a difference below zero."""
    experiments = (ROOT / "docs" / "experiments.md").read_text()  # itself written from results
    for match in STATED.finditer(page):
        mean, low, high, gone = match.groups()
        stated = (float(mean), float(low), float(high))
        loss = (-stated[0], -stated[2], -stated[1])
        signed = mean[0] in "+-"
        if gone or is_stored(stated, stored) or (not signed and is_stored(loss, stored)):
            continue
        if mean not in experiments or f"[{low}, {high}]" not in experiments:
            yield match.group()


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_intervals_are_those_of_stored_results(page: Path, stored: Stored) -> None:
    assert list(unfounded(page.read_text(), stored)) == []


def test_another_interval_is_noticed(stored: Stored) -> None:
    assert list(unfounded("+0.250 [+0.211, +0.292]", stored)) == []
    assert list(unfounded("+0.250 [+0.211, +0.298]", stored)) == ["+0.250 [+0.211, +0.298]"]
    assert list(unfounded("+0.250 [+0.211, +0.298] (no longer stored)", stored)) == []
