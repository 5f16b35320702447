"""The headline and the verdicts follow from the stored figures, whichever way these go."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.experiment_papers import headline, rows
from engine.experiments.intervals import over_seeds


def write(folder: Path, name: str, figure: str, by_method: Mapping[str, Sequence[float]]) -> None:
    """A result of these figures by seed, the first method being the reference."""
    methods: dict[str, Any] = {}
    for method, values in by_method.items():
        sign = -1 if figure == "loss" else 1
        methods[method] = {
            "rate": 0.1,
            "is_edge_of_sweep": False,
            "figures": {
                figure: asdict(over_seeds(values)),
                "score": asdict(over_seeds([sign * value for value in values])),
            },
            "by_seed": [{figure: value} for value in values],
        }
    result = {
        "settings": {"experiment": name.removesuffix("-small"), "seeds": [1, 2, 3]},
        "reference": next(iter(by_method)),
        "methods": methods,
    }
    (folder / name).mkdir()
    (folder / name / "result.json").write_text(json.dumps(result), encoding="utf-8")


@pytest.mark.parametrize(
    ("full", "blocks", "verdict"),
    [
        ((2.01, 2.02, 2.03), (2.3, 2.31, 2.33), "LLN+Diag is nearer"),
        ((2.01, 2.02, 2.03), (2.02, 2.01, 2.03), "LLN+Diag is not nearer"),
        ((2.3, 2.31, 2.33), (2.01, 2.02, 2.03), "LLN+Diag is not nearer"),
    ],
)
def test_the_masked_model(
    full: Sequence[float], blocks: Sequence[float], verdict: str, tmp_path: Path
) -> None:
    losses = {"softmax": (2.0, 2.01, 2.02), "lln_diag": full, "block_diagonal": blocks}
    write(tmp_path, "mlm-small", "loss", losses)
    assert verdict in headline(tmp_path)
    assert "No task was found" in headline(tmp_path)


@pytest.mark.parametrize(
    ("task", "full", "blocks", "told"),
    [
        ("majority", (0.8, 0.82, 0.81), (0.5, 0.51, 0.5), "by 20 points or more"),
        ("majority", (0.6, 0.62, 0.61), (0.5, 0.51, 0.5), "better than blocks alone, by less"),
        ("majority", (0.4, 0.62, 0.5), (0.5, 0.51, 0.5), "cannot be told from blocks alone"),
        ("majority", (0.4, 0.42, 0.41), (0.5, 0.51, 0.5), "worse than blocks alone"),
        ("pathfinder", (0.49, 0.51, 0.5), (0.5, 0.51, 0.49), "better than a guess"),
    ],
)
def test_a_task_is_told_by_what_lln_adds(
    task: str, full: Sequence[float], blocks: Sequence[float], told: str, tmp_path: Path
) -> None:
    write(tmp_path, f"{task}-small", "accuracy", {"block_diagonal": blocks, "lln_diag": full})
    (line,) = (one for one in headline(tmp_path).splitlines() if f"`{task}-small`" in one)
    assert told in line


@pytest.mark.parametrize(
    ("full", "softmax", "verdict"),
    [
        ((0.6, 0.61, 0.62), (0.8, 0.81, 0.82), "fails: softmax is better"),
        ((0.8, 0.81, 0.82), (0.81, 0.8, 0.82), "holds: not to be told apart"),
        ((0.8, 0.81, 0.82), (0.6, 0.61, 0.62), "LLN+Diag is better than softmax"),
    ],
)
def test_the_papers_row(
    full: Sequence[float], softmax: Sequence[float], verdict: str, tmp_path: Path
) -> None:
    (tmp_path / "experiments").mkdir()
    accuracies = {"block_diagonal": (0.5, 0.51, 0.52), "lln_diag": full, "softmax": softmax}
    write(tmp_path / "experiments", "vision-small", "accuracy", accuracies)
    found = {says: (command, judged) for _, says, command, _, judged in rows(tmp_path)}
    assert found["Table 3, ViT: LLN+Diag on par with softmax"] == (
        "`lln experiment vision --seeds 5`",
        verdict,
    )
    assert found["Table 5, ListOps"][1] == "not run"
