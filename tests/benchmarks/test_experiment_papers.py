"""The headline and the verdicts follow from the stored figures, whichever way these go."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.experiments import budgets
from benchmarks.experiments.papers import headline, rows
from benchmarks.experiments.tables import Stored
from benchmarks.experiments.verdicts import (
    cost_of_lra,
    fixed_scales,
    inverse_scale,
    matched_scales,
    prunes,
    scales_part,
)
from engine.experiments.catalogue import EXPERIMENTS
from engine.experiments.intervals import over_seeds
from engine.experiments.trials import Trial


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
        ((2.01, 2.02, 2.03), (2.3, 2.31, 2.33), "LLN+Diag is closer"),
        ((2.01, 2.02, 2.03), (2.02, 2.01, 2.03), "LLN+Diag is not closer"),
        ((2.3, 2.31, 2.33), (2.01, 2.02, 2.03), "LLN+Diag is not closer"),
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
        ("majority", (0.4, 0.62, 0.5), (0.5, 0.51, 0.5), "cannot be distinguished from blocks"),
        ("majority", (0.4, 0.42, 0.41), (0.5, 0.51, 0.5), "worse than blocks alone"),
        ("pathfinder", (0.49, 0.51, 0.5), (0.5, 0.51, 0.49), "better than guessing"),
    ],
)
def test_a_task_is_told_by_what_lln_adds(
    task: str, full: Sequence[float], blocks: Sequence[float], told: str, tmp_path: Path
) -> None:
    write(tmp_path, f"{task}-small", "accuracy", {"block_diagonal": blocks, "lln_diag": full})
    (line,) = (one for one in headline(tmp_path).splitlines() if f"`{task}-small`" in one)
    assert told in line


def test_kinds_that_are_better_than_lln_diag_are_told(tmp_path: Path) -> None:
    accuracies = {
        "block_diagonal": [0.2, 0.21, 0.2],
        "lln_diag": [0.5, 0.51, 0.52],
        "elu": [0.7, 0.71, 0.73],
        "softmax": [0.4, 0.6, 0.56],  # the interval of its difference holds zero
    }
    write(tmp_path, "recall-small", "accuracy", accuracies)
    [line] = [one for one in headline(tmp_path).splitlines() if "Better than LLN+Diag" in one]
    assert "`elu` +0.203" in line
    assert "softmax" not in line
    assert "block_diagonal" not in line


@pytest.mark.parametrize(
    ("full", "softmax", "verdict"),
    [
        ((0.6, 0.61, 0.62), (0.8, 0.81, 0.82), "fails: softmax is better"),
        ((0.8, 0.81, 0.82), (0.81, 0.8, 0.82), "holds: no measurable difference"),
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


def write_seeds(folder: Path, by_method: Mapping[str, Sequence[Mapping[str, float]]]) -> Stored:
    """A result of several figures by seed."""
    methods = {
        method: {
            "figures": {name: asdict(over_seeds([one[name] for one in seeds])) for name in seeds[0]}
            | {"score": {"mean": 0.0}},
            "by_seed": seeds,
        }
        for method, seeds in by_method.items()
    }
    folder.mkdir(exist_ok=True)
    (folder / "result.json").write_text(json.dumps({"methods": methods}), encoding="utf-8")
    return Stored(folder)


@pytest.mark.parametrize(
    ("beta", "verdict"),
    [
        (2.15, "holds"),
        (1.94, "nearly holds: at most 0.06 outside"),
        (2.4, "fails: 0.20 outside of 2 to 2.2"),
        (1.8, "fails: 0.20 outside"),
    ],
)
def test_matched_scales(beta: float, verdict: str, tmp_path: Path) -> None:
    seeds = [{"alpha_of_layer_1_at_0": 2.1, "beta_of_layer_1_at_0": beta}] * 3
    figure, judged = matched_scales(write_seeds(tmp_path, {"lln_matched": seeds}))
    assert f"beta from {beta:.2f}" in figure
    assert judged.startswith(verdict)


@pytest.mark.parametrize(
    ("at_1", "at_4", "verdict"),
    [
        (0.3, 0.5, "holds: worse at 1, and no worse from 2 on"),
        (0.5, 0.5, "fails: at 1 not measurably worse, and no worse from 2 on"),
        (0.3, 0.4, "worse at 1, and at 4"),
    ],
)
def test_fixed_scales(at_1: float, at_4: float, verdict: str, tmp_path: Path) -> None:
    means = {"lln_matched": 0.5, "lln_1": at_1, "lln_2": 0.5, "lln_3": 0.5, "lln_4": at_4}
    by_method = {
        name: [{"accuracy": mean + 0.001 * seed * (-1) ** at} for seed in range(3)]
        for at, (name, mean) in enumerate(means.items())
    }
    assert fixed_scales(write_seeds(tmp_path, by_method))[1] == verdict


@pytest.mark.parametrize(
    ("own", "is_to_exceed", "verdict"),
    [
        ((-14, -14, -15), False, "fails: larger"),
        ((-20, -20, -20), False, "holds: no larger"),
        ((-24, -25, -24), False, "holds: smaller"),
        ((-14, -14, -15), True, "holds: larger"),
        ((-20, -20, -20), True, "fails: no larger"),
    ],
)
def test_the_loss_scale(
    own: Sequence[float], is_to_exceed: bool, verdict: str, tmp_path: Path
) -> None:
    by_method: dict[str, Sequence[Mapping[str, float]]] = {
        "lln": [{"log2_inverse_scale": one} for one in own],
        "softmax": [{"log2_inverse_scale": -20}] * 3,
    }
    judge = inverse_scale("lln", "softmax", is_to_exceed=is_to_exceed)
    assert judge(write_seeds(tmp_path, by_method))[1] == verdict


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        ((0.3, 0.31, 0.33), "holds: they part"),
        ((0.1, 0.12, 0.09), "fails: they part no further"),
        ((0.01, 0.02, 0.01), "fails: they come together"),
    ],
)
def test_scales_of_heads(end: Sequence[float], verdict: str, tmp_path: Path) -> None:
    seeds = [{"spread_of_scales_at_start": 0.1, "spread_of_scales_at_end": one} for one in end]
    assert scales_part(write_seeds(tmp_path, {"unpruned": seeds}))[1] == verdict


@pytest.mark.parametrize(
    ("at_once", "at_end", "verdict"),
    [
        (
            *(0.9, 1.0),
            "as good as unpruned AdamW; when pruned better than random and magnitude; at "
            "the end better than random and magnitude",
        ),
        (
            *(0.55, 0.8),
            "loses to unpruned AdamW; when pruned better than random, worse than magnitude; at the "
            "end worse than random and magnitude",
        ),
        (
            *(0.5, 0.9),
            "loses to unpruned AdamW; when pruned worse than magnitude, no better than random; at "
            "the end no better than random and magnitude",
        ),
    ],
)
def test_pruning(at_once: float, at_end: float, verdict: str, tmp_path: Path) -> None:
    def seeds(when_pruned: float, score: float) -> list[dict[str, float]]:
        return [{"score_when_pruned": when_pruned + 0.01 * at, "score": score} for at in range(3)]

    by_method = {
        "unpruned": seeds(1.0, 1.0),
        "gate_fisher": seeds(at_once, at_end),
        "random": seeds(0.5, 0.9),
        "magnitude": seeds(0.6, 0.9),
    }
    assert prunes("gate_fisher")(write_seeds(tmp_path, by_method))[1] == verdict


def test_the_cost_of_long_range_tasks(tmp_path: Path) -> None:
    path = tmp_path / "training-steps.json"
    assert cost_of_lra(path) == ("", "not run")
    kinds = {"softmax": (1.0, 40.0), "performer": (0.5, 60.0), "lln_diag": (0.3, 50.0)}
    measured = [
        {"case": f"{kind}, {length:,} tokens", "measure": measure, "value": value}
        for kind, values in kinds.items()
        for length in (1024, 2048, 4096)
        for measure, value in zip(
            ("time of a step / softmax's", "peak of a step, MB"), values, strict=True
        )
    ]
    path.write_text(json.dumps({"rows": measured}), encoding="utf-8")
    figure, verdict = cost_of_lra(path)
    assert "performer 0.60 to 0.60" in figure
    assert "nystromformer" not in figure
    assert verdict == "less time than all of them; not less memory than all of them"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_full_budgets_are_more_work(name: str) -> None:
    small, full = (
        budgets.work(EXPERIMENTS[name].contests[budget]()) for budget in ("small", "full")
    )
    if name in ("quadratic", "logistic"):
        assert small is full is None
        return
    assert small is not None
    assert full is not None
    assert full > 4 * small


def test_hours_grow_with_the_work(tmp_path: Path) -> None:
    write(tmp_path, "majority-small", "accuracy", {"softmax": (0.5, 0.6, 0.7)})
    with (tmp_path / "majority-small" / "trials.jsonl").open("w", encoding="utf-8") as file:
        for seed in range(3):
            trial = Trial(method="softmax", rate=0.1, seed=seed, part="test")
            file.write(json.dumps({**asdict(trial), "figures": {}, "seconds": 36.0}) + "\n")
    ((name, trials, steps, tokens, hours),) = budgets.rows(tmp_path)
    assert (name, trials, steps, tokens) == ("`majority`", "135", "1,000", "32,768")
    # 10 times the steps, 8 times the tokens of a step, and the same layers.
    assert float(hours) == pytest.approx(135 * 36 * 80 / 3600, rel=0.05)
