"""Verdicts on the papers' claims, from what the stored experiments measured.

Each judge makes a figure and a verdict of one experiment; none is written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.experiments.tables import Stored, spread
from engine.experiments.intervals import SeedInterval, over_seeds, paired

Judged: TypeAlias = tuple[str, str]
"""The figure and the verdict."""
Judge: TypeAlias = Callable[[Stored], Judged]

WIDE_GAIN = 0.2
"""Accuracy that LLN has to add to blocks for a task to show that range decides."""
GUESSES = {"matching": 0.5, "pathfinder": 0.5, "text": 0.5, "finetune": 0.5}


def kind_of(task: Stored) -> str:
    guess = GUESSES.get(task.task)
    if guess is not None and all(
        task.figures(method)["accuracy"]["low"] <= guess for method in task.methods
    ):
        return "guess"
    difference = gain(task)
    if holds_zero(difference):
        return "level"
    if difference.mean < 0:
        return "worse"
    blocks, full = (task.figures(name)["accuracy"] for name in ("block_diagonal", "lln_diag"))
    is_apart = full["low"] > blocks["high"]
    return "wide" if difference.mean >= WIDE_GAIN and is_apart else "better"


def gain(task: Stored) -> SeedInterval:
    return task.minus("lln_diag", "block_diagonal", "accuracy")


def reached(problem: Stored, name: str) -> bool:
    return count(problem, name) == len(problem.result["settings"]["seeds"])


def count(problem: Stored, name: str) -> int:
    return sum(bool(one["reached"]) for one in problem.result["methods"][name]["by_seed"])


def holds_zero(interval: SeedInterval) -> bool:
    return interval.low <= 0 <= interval.high


def signed(interval: SeedInterval) -> str:
    return spread(asdict(interval), sign="+")


def follows_softmax(stored: Stored) -> tuple[str, str]:
    own = stored.minus("lln", "softmax", "loss")
    blocks = stored.minus("block_diagonal", "softmax", "loss")
    figure = f"LLN minus softmax {signed(own)} nats; blocks alone minus softmax {signed(blocks)}"
    if not holds_zero(own):
        return figure, "LLN differs from softmax" if own.mean > 0 else "LLN is below softmax"
    if holds_zero(blocks):
        return figure, "holds, and as much for blocks alone: it says nothing of LLN"
    return figure, "holds"


def on_par(stored: Stored) -> tuple[str, str]:
    own = stored.minus("lln_diag", "softmax", "accuracy")
    blocks = stored.minus("block_diagonal", "softmax", "accuracy")
    figure = f"LLN+Diag minus softmax {signed(own)}; blocks alone minus softmax {signed(blocks)}"
    if kind_of(stored) == "guess":
        return figure, "open: no kind is better than a guess at this budget"
    if own.high < 0:
        return figure, "fails: softmax is better"
    if own.low > 0:
        also = ", and so are blocks alone" if blocks.low > 0 else ""
        return figure, f"LLN+Diag is better than softmax{also}"
    also = "; blocks alone are too" if holds_zero(blocks) or blocks.mean > 0 else ""
    return figure, f"holds: no measurable difference{also}"


def fewer_steps(name: str) -> Callable[[Stored], tuple[str, str]]:
    def judge(stored: Stored) -> tuple[str, str]:
        total = len(stored.result["settings"]["seeds"])
        if not reached(stored, name) or not reached(stored, "adamw"):
            figure = f"reached the target from {count(stored, name)} of {total} seeds"
            return figure, "fails" if reached(stored, "adamw") else "open: AdamW missed it too"
        steps = stored.minus(name, "adamw", "steps")
        seconds = stored.seconds_minus(name, "adamw")
        ratio = stored.seconds(name).mean / stored.seconds("adamw").mean
        figure = (
            f"{spread(asdict(steps), sign='+', digits=0)} steps; {signed(seconds)} CPU seconds "
            f"({ratio:.2f} of AdamW's)"
        )
        return figure, f"{_fewer(steps)} steps, {_fewer(seconds)} seconds"

    return judge


def _fewer(minus: SeedInterval) -> str:
    if holds_zero(minus):
        return "no fewer"
    return "fewer" if minus.mean < 0 else "more"


def unjudged(stored: Stored) -> tuple[str, str]:
    raise AssertionError(f"{stored.name} has no judge")


_LINEAR = 1.05


_TIME, _PEAK = "time of a step / softmax's", "peak of a step, MB"


def steps_against_length(path: Path) -> tuple[str, str]:
    """The figure and verdict of table 2."""
    if not path.exists():
        return "", "not run"
    measured = json.loads(path.read_text(encoding="utf-8"))["rows"]
    growth = {
        row["case"].partition(",")[0]: float(row["value"])
        for row in measured
        if row["measure"] == "bytes a token, ratio"
    }
    length = max(int(row["case"].split()[1].replace(",", "")) for row in measured if row["seconds"])
    longest = {
        row["case"].partition(",")[0]: row
        for row in measured
        if row["seconds"] and row["case"].endswith(f" {length:,} tokens")
    }
    times = {
        kind: f"{row['value']:.2f} [{row['spread'][0]:.2f}, {row['spread'][1]:.2f}]"
        for kind, row in longest.items()
    }
    figure = (
        f"bytes a token at {length:,} over those at 512: LLN {growth['lln']:.2f}, LLN+Diag "
        f"{growth['lln_diag']:.2f}, softmax {growth['softmax']:.2f}; time over softmax's at "
        f"{length:,} [least, most of three turns]: LLN {times['lln']}, LLN+Diag "
        f"{times['lln_diag']}, Nystromformer {times['nystromformer']}"
    )
    is_linear = max(growth["lln"], growth["lln_diag"]) <= _LINEAR
    also = ", and so has softmax here" if growth["softmax"] <= _LINEAR else ""
    return figure, (
        f"memory {'has' if is_linear else 'has not'} linear growth{also}; "
        f"{_speeds(longest['lln'], longest['lln_diag'], than=longest['nystromformer'])}"
    )


def _speeds(*own: Mapping[str, Any], than: Mapping[str, Any]) -> str:
    if max(one["spread"][1] for one in own) < than["spread"][0]:
        return "faster than Nystromformer"
    if min(one["spread"][0] for one in own) > than["spread"][1]:
        return "slower than Nystromformer"
    return "not measurably different from Nystromformer in time"


_OTHERS_OF_TABLE_4 = ("softmax", "performer", "nystromformer")
_LENGTHS_OF_TABLE_4 = (1024, 2048, 4096)


def cost_of_lra(path: Path) -> Judged:
    """The figure and verdict of table 4, at the lengths of its tasks."""
    if not path.exists():
        return "", "not run"
    measured = json.loads(path.read_text(encoding="utf-8"))["rows"]
    found = {(row["case"], row["measure"]): float(row["value"]) for row in measured}
    kinds = [kind for kind in _OTHERS_OF_TABLE_4 if (f"{kind}, 1,024 tokens", _TIME) in found]
    told = {"time": _ratios(found, kinds, _TIME), "memory": _ratios(found, kinds, _PEAK)}
    figure = "; ".join(
        f"{name} of LLN+Diag over that of others: "
        + ", ".join(f"{kind} {min(one):.2f} to {max(one):.2f}" for kind, one in ratios.items())
        for name, ratios in told.items()
    )
    verdict = "; ".join(
        f"{'less' if max(map(max, ratios.values())) < 1 else 'not less'} {name} than all of them"
        for name, ratios in told.items()
    )
    return f"{figure} (1,024 to 4,096 tokens)", verdict


def _ratios(
    found: Mapping[tuple[str, str], float], kinds: Sequence[str], measure: str
) -> dict[str, list[float]]:
    return {
        kind: [
            found[f"lln_diag, {length:,} tokens", measure]
            / found[f"{kind}, {length:,} tokens", measure]
            for length in _LENGTHS_OF_TABLE_4
        ]
        for kind in kinds
    }


_NEARLY = 0.1


def matched_scales(stored: Stored) -> Judged:
    """Figure 9: alpha and beta while they are matched in training."""
    told, every = [], []
    for scale in ("alpha", "beta"):
        means = [
            figure["mean"]
            for name, figure in stored.figures("lln_matched").items()
            if name.startswith(f"{scale}_of_layer_")
        ]
        told.append(f"{scale} from {min(means):.2f} to {max(means):.2f}")
        every += means
    outside = max(2 - min(every), max(every) - 2.2, 0)
    figure = f"{', '.join(told)} over layers and steps (means over seeds)"
    if outside <= _NEARLY:
        return figure, f"nearly holds: at most {outside:.2f} outside" if outside else "holds"
    return figure, f"fails: {outside:.2f} outside of 2 to 2.2"


def fixed_scales(stored: Stored) -> Judged:
    """Figure 10a: below the matched range LLN is worse, from 2 on it is not."""
    minus = {
        number: stored.minus(f"lln_{number}", "lln_matched", "accuracy") for number in range(1, 5)
    }
    figure = "accuracy minus matched: " + ", ".join(
        f"at {number} {signed(one)}" for number, one in minus.items()
    )
    is_worse_below = minus[1].high < 0
    worse = [str(number) for number in (2, 3, 4) if minus[number].high < 0]
    below = "worse at 1" if is_worse_below else "fails: at 1 not measurably worse"
    above = f"and at {', '.join(worse)}" if worse else "and no worse from 2 on"
    return figure, f"{'holds: ' if is_worse_below and not worse else ''}{below}, {above}"


def inverse_scale(own: str, other: str, *, is_to_exceed: bool) -> Judge:
    """Figures 8b and 10b: the largest inverse loss scale of the second half of training."""

    def judge(stored: Stored) -> Judged:
        minus = stored.minus(own, other, "log2_inverse_scale")
        figure = (
            f"log2 of {own}'s largest inverse scale minus {other}'s: "
            f"{spread(asdict(minus), sign='+', digits=1)}"
        )
        larger = "larger" if minus.low > 0 else "smaller" if minus.high < 0 else "no larger"
        is_true = (minus.low > 0) if is_to_exceed else (minus.low <= 0)
        return figure, f"{'holds' if is_true else 'fails'}: {larger}"

    return judge


def scales_part(stored: Stored) -> Judged:
    """Do heads organise into scales as they are trained?"""
    start, end = (
        [one[f"spread_of_scales_at_{when}"] for one in stored.by_seed("unpruned")]
        for when in ("start", "end")
    )
    grown = paired(end, start)
    figure = (
        "deviation of the logarithms of heads' mean distances, the end minus the start: "
        f"{signed(grown)}; at the end {over_seeds(end).mean:.3f}"
    )
    if holds_zero(grown):
        return figure, "fails: they part no further"
    return figure, "holds: they part" if grown.mean > 0 else "fails: they come together"


_NO_LOSS = 0.05
"""A loss of accuracy: an interval that ends above it shows none."""


def prunes(rule: str) -> Judge:
    """Is a rule better than chance and than the weights' norm, at the same count of heads?"""

    def judge(stored: Stored) -> Judged:
        lost = stored.minus(rule, "unpruned", "score")
        at_once, at_end = (
            {name: stored.minus(rule, name, figure) for name in ("random", "magnitude")}
            for figure in ("score_when_pruned", "score")
        )
        figure = f"minus unpruned {signed(lost)}; " + "; ".join(
            f"minus {name} {signed(at_once[name])} when pruned, {signed(one)} at the end"
            for name, one in at_end.items()
        )
        when_pruned = f"when pruned {_ranked(at_once)}; at the end {_ranked(at_end)}"
        return figure, f"{_told_from_unpruned(lost)}; {when_pruned}"

    return judge


def _told_from_unpruned(minus: SeedInterval) -> str:
    if minus.high < 0:
        return "loses to unpruned AdamW"
    if minus.low > -_NO_LOSS:
        return "as good as unpruned AdamW"
    return "cannot be distinguished from unpruned AdamW"


def _ranked(minus: Mapping[str, SeedInterval]) -> str:
    kinds: dict[str, list[str]] = {"better": [], "worse": [], "no better": []}
    for name, one in minus.items():
        kinds["better" if one.low > 0 else "worse" if one.high < 0 else "no better"].append(name)
    return ", ".join(f"{kind} than {' and '.join(names)}" for kind, names in kinds.items() if names)
