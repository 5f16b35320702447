"""What `python -m benchmarks.bulk` has stored, as rows of a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

HEAD = ("measured", "goal", "found", "met")
KILLED = {"worker": "a worker", "command": "the command", "both": "both at once"}
MOST_PARTS = 1.0
LEAST_SPEED = 0.95
MOST_GROWTH = 1.05


def read_results(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "bulk.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def rows(results: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    of_measure = {
        name: [one for one in results if one["measure"] == name]
        for name in ("speed", "growth", "kills")
    }
    yield from (_speed(one) for one in of_measure["speed"])
    yield from (row for one in of_measure["growth"] for row in _growth(one))
    for what in KILLED:
        if found := [one[what] for one in of_measure["kills"] if what in one]:
            yield _kills(what, found)


def _speed(one: Mapping[str, Any]) -> tuple[str, ...]:
    turns = ", ".join(f"{turn['speed']:.3f}" for turn in one["turns"])
    own = median(
        turn["ray"]["cpu_s_of"]["ray"] / sum(plain["cpu_s"] for plain in turn["plain"])
        for turn in one["turns"]
    )
    return (
        f"tokens/s of two workers on Ray, over two plain processes; {one['texts']:,} texts",
        f"at least {LEAST_SPEED}",
        f"{one['speed_of_ray_in_plain']:.3f} (turns: {turns}); processor time "
        f"{one['cpu_of_ray_in_plain']:.3f} times, of which Ray's own processes {own:.3f}",
        _is_met(one["speed_of_ray_in_plain"] >= LEAST_SPEED),
    )


def _growth(one: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    small, large = (sorted(map(int, one["jobs"]))[at] for at in (0, -1))
    for name, what in (("run_s", "seconds"), ("cpu_s", "processor seconds")):
        found = one["large_in_small"][name]
        yield (
            f"{what} a token of {large:,} documents, over {small:,}",
            f"at most {MOST_GROWTH}",
            f"{found:.3f}",
            _is_met(found <= MOST_GROWTH),
        )


def _kills(what: str, found: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    each = [lost for one in found for lost in one["parts_repeated"]["each"]]
    equal = all(one["equal_to_plain"] for one in found)
    return (
        f"parts repeated by a kill of {KILLED[what]}; {len(each)} kills",
        f"at most {MOST_PARTS:g}, the same bytes",
        f"mean {sum(each) / len(each):.3f}, most {max(each):.3f}; "
        f"{'the same bytes' if equal else 'other bytes'}",
        _is_met(equal and max(each) <= MOST_PARTS),
    )


def _is_met(met: bool) -> str:
    return "yes" if met else "**no**"


def measured_on(results: Sequence[Mapping[str, Any]]) -> str:
    machines = {f"{one['machine']['cpu']}, {one['machine']['cores']} cores" for one in results}
    commits = sorted({one["commit"] for one in results})
    loads = [one["machine"]["load_average"][0] for one in results]
    return (
        f"{'; '.join(sorted(machines))}, shared with other work (load average {min(loads):.1f} to "
        f"{max(loads):.1f} before the runs); commit {', '.join(f'`{one}`' for one in commits)}."
    )
