"""What is stored of bulk jobs, as the docs show it."""

from __future__ import annotations

from typing import Any

from benchmarks.bulk.table import rows


def kills(each: list[float], *, equal: bool = True) -> dict[str, Any]:
    return {"parts_repeated": {"each": each}, "equal_to_plain": equal}


def test_a_missed_goal_is_told() -> None:
    took = {"ray": {"cpu_s_of": {"ray": 0.5}}, "plain": [{"cpu_s": 12.0}, {"cpu_s": 13.0}]}
    turns = [{"speed": 0.9, **took}, {"speed": 0.92, **took}]
    speed = {"measure": "speed", "texts": 2_000, "turns": turns}
    ratios = {"speed_of_ray_in_plain": 0.91, "cpu_of_ray_in_plain": 1.02}
    jobs: dict[str, Any] = {"1000": [], "100000": []}
    growth = {
        "measure": "growth",
        "jobs": jobs,
        "large_in_small": {"run_s": 1.2, "cpu_s": 0.99},
    }
    found = list(
        rows(
            [
                {"measure": "kills", "worker": kills([0.1, 0.2])},
                {**speed, **ratios},
                growth,
                {"measure": "kills", "worker": kills([0.6]), "both": kills([0.1], equal=False)},
                {"measure": "kills", "command": kills([1.2])},
            ]
        )
    )
    assert [row[-1] for row in found] == ["**no**", "**no**", "yes", "yes", "**no**", "**no**"]
    assert found[0][2] == (
        "0.910 (turns: 0.900, 0.920); processor time 1.020 times, "
        "of which Ray's own processes 0.020"
    )
    assert found[1][0] == "seconds a token of 100,000 documents, over 1,000"
    assert found[3][0].endswith("3 kills")
    assert found[3][2] == "mean 0.300, most 0.600; the same bytes"
    assert "other bytes" in found[5][2]
