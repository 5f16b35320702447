"""The tables and the headline of docs/experiments.md, from the stored results of experiments."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from engine.experiments.concentration import FIGURES
from engine.experiments.document_intervals import minus_by_document
from engine.experiments.intervals import SeedInterval, over_seeds, paired
from engine.experiments.trials import ByDocument, read_trials

Interval = Mapping[str, float]


@dataclass(frozen=True)
class Stored:
    """The result of one experiment."""

    folder: Path

    @cached_property
    def result(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = json.loads((self.folder / "result.json").read_text("utf-8"))
        return found

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def task(self) -> str:
        return str(self.result["settings"]["experiment"])

    @property
    def reference(self) -> str:
        return str(self.result["reference"])

    @property
    def methods(self) -> Mapping[str, Mapping[str, Any]]:
        """The best first."""
        return dict(
            sorted(
                self.result["methods"].items(), key=lambda one: -one[1]["figures"]["score"]["mean"]
            )
        )

    def figures(self, method: str) -> Mapping[str, Interval]:
        found: Mapping[str, Interval] = self.result["methods"][method]["figures"]
        return found

    def minus(self, first: str, second: str, figure: str) -> SeedInterval:
        """The difference of two methods, paired by seed."""
        return paired(
            *([one[figure] for one in self.by_seed(method)] for method in (first, second))
        )

    def minus_by_document(self, first: str, second: str) -> Mapping[str, Interval]:
        """Differences of two methods, averaged over seeds, with intervals by documents."""
        return minus_by_document(*(self._by_document(method) for method in (first, second)))

    def _by_document(self, method: str) -> list[ByDocument]:
        return [
            measured.by_document
            for trial, measured in read_trials(self.folder)
            if (trial.part, trial.method) == ("test", method)
        ]

    def seconds(self, method: str) -> SeedInterval:
        """CPU seconds of a test trial."""
        return over_seeds(list(self._seconds_by_seed(method).values()))

    def seconds_minus(self, first: str, second: str) -> SeedInterval:
        own, others = (self._seconds_by_seed(method) for method in (first, second))
        return paired([own[seed] for seed in others], list(others.values()))

    def _seconds_by_seed(self, method: str) -> dict[int, float]:
        return {
            trial.seed: measured.seconds
            for trial, measured in read_trials(self.folder)
            if (trial.part, trial.method) == ("test", method)
        }

    def by_seed(self, method: str) -> Sequence[Interval]:
        """The figures of each seed."""
        found: Sequence[Interval] = self.result["methods"][method]["by_seed"]
        return found


def stored_experiments(folder: Path) -> dict[str, Stored]:
    """Stored experiments by name and budget."""
    return {path.parent.name: Stored(path.parent) for path in sorted(folder.glob("*/result.json"))}


def tables(folder: Path) -> str:
    """A table for each stored experiment."""
    return "\n\n".join(_shown(stored) for stored in stored_experiments(folder).values())


def _shown(stored: Stored) -> str:
    seeds = len(stored.result["settings"]["seeds"])
    link = f"../benchmarks/results/experiments/{stored.name}"
    figures = next(iter(stored.methods.values()))["figures"]
    if "score_when_pruned" in figures:
        shown = _plain(stored, "heads kept by", ("accuracy", "score_when_pruned"))
    elif "log2_inverse_scale" in figures:
        shown = _plain(stored, "attention", ("loss", "log2_inverse_scale", "skipped_steps"))
    elif "far_from_title" in figures:
        shown = _found_passages(stored)
    elif "accuracy" in figures:
        shown = "\n\n".join((_accuracies(stored), *_scales(stored)))
    elif "steps" in figures:
        shown = _steps_to_target(stored)
    else:
        shown = _losses(stored)
    return f"**{stored.name}**, {seeds} seeds ([stored]({link})):\n\n{shown}"


def _accuracies(stored: Stored) -> str:
    ranges = [name for name in stored.figures(stored.reference) if name.startswith("accuracy_at")]
    head = (
        *("attention", "learning rate", "accuracy", f"minus {stored.reference}"),
        *("CPU seconds", *(name.replace("_", " ") for name in ranges)),
    )
    rows = (
        (
            *(f"`{name}`", _rate(method), spread(method["figures"]["accuracy"])),
            spread(method["minus_reference"]["accuracy"], sign="+"),
            spread(asdict(stored.seconds(name)), digits=1),
            *(spread(method["figures"][one]) for one in ranges),
        )
        for name, method in stored.methods.items()
    )
    return table(head, rows)


def _scales(stored: Stored) -> Iterator[str]:
    """Alpha and beta where they are matched, at the start, in the middle and at the end."""
    figures = stored.figures("lln_matched") if "lln_matched" in stored.methods else {}
    steps = sorted({int(name.rpartition("_")[2]) for name in figures if "_of_layer_" in name})
    if not steps:
        return
    shown = (steps[0], steps[len(steps) // 2], steps[-1])
    layers = range(1, stored.result["settings"]["layers"] + 1)
    rows = (
        (
            f"{scale}, layer {layer}",
            *(spread(figures[f"{scale}_of_layer_{layer}_at_{step}"], digits=2) for step in shown),
        )
        for scale in ("alpha", "beta")
        for layer in layers
    )
    yield "Of `lln_matched`, in training:"
    yield table(("", *(f"after {step:,} steps" for step in shown)), rows)


def _plain(stored: Stored, method_is: str, names: Sequence[str]) -> str:
    """Each figure, and its difference from the reference's."""
    head = (
        *(method_is, "learning rate"),
        *(text for name in names for text in (name.replace("_", " "), f"minus {stored.reference}")),
        "CPU seconds",
    )
    rows = (
        (
            *(f"`{name}`", _rate(method)),
            *(
                text
                for figure in names
                for text in (
                    spread(method["figures"][figure]),
                    spread(method["minus_reference"][figure], sign="+"),
                )
            ),
            spread(asdict(stored.seconds(name)), digits=1),
        )
        for name, method in stored.methods.items()
    )
    return table(head, rows)


_ASKED = ("passages", "by_heading", "by_first_sentence", "far_from_title", "later_paragraphs")


def _found_passages(stored: Stored) -> str:
    """What late chunks find, and what that is less the reference, by seeds and by documents."""
    head = ("method", *(name.replace("_", " ") for name in _ASKED))
    found = (
        (
            f"`{name}`",
            *(f"{method['figures'][one]['mean']:.3f}" for one in _ASKED),
            spread(asdict(stored.seconds(name)), digits=0),
        )
        for name, method in stored.methods.items()
    )
    differences = (
        (
            f"`{name}`",
            *(
                spread(method["minus_reference"][one], sign="+")
                + ", "
                + spread(method["minus_reference_by_document"][one], sign="+").partition(" ")[2]
                for one in _ASKED
            ),
        )
        for name, method in stored.methods.items()
        if name != stored.reference
    )
    return "\n\n".join(
        (
            table((*head, "CPU seconds"), found),
            f"Minus `{stored.reference}`, with an interval by seeds and one by documents:",
            table(head, differences),
        )
    )


def _losses(stored: Stored) -> str:
    """Masked language models: loss, and how concentrated each layer is at the end."""
    last = watched_tokens(stored)[-1]
    layers = range(1, stored.result["settings"]["layers"] + 1)
    head = (
        *("attention", "learning rate", "held-out loss, nats"),
        *(f"minus {stored.reference}", "CPU seconds"),
    )
    rows = (
        (
            *(f"`{name}`", _rate(method), spread(method["figures"]["loss"])),
            spread(method["minus_reference"]["loss"], sign="+"),
            spread(asdict(stored.seconds(name)), digits=1),
        )
        for name, method in stored.methods.items()
    )
    concentration_head = (
        "attention",
        *(f"{figure.replace('_', ' ')}, layer {layer}" for figure in FIGURES for layer in layers),
    )
    concentration_rows = (
        (
            f"`{name}`",
            *(
                " → ".join(
                    f"{method['figures'][f'{figure}_of_layer_{layer}_at_{at}']['mean']:z.2f}"
                    for at in (0, last)
                )
                for figure in FIGURES
                for layer in layers
            ),
        )
        for name, method in stored.methods.items()
    )
    return "\n\n".join(
        (
            table(head, rows),
            f"From the first step to the last, after {last:,} tokens (means over heads and seeds):",
            table(concentration_head, concentration_rows),
        )
    )


def watched_tokens(stored: Stored) -> list[int]:
    """After how many tokens the loss was measured."""
    prefix = "loss_at_"
    figures = stored.figures(stored.reference)
    return [int(name.removeprefix(prefix)) for name in figures if name.startswith(prefix)]


def _steps_to_target(stored: Stored) -> str:
    """Optimisers. Steps and seconds are of trials that reached the target, if all did."""
    lowest = (
        "lowest loss, of the first" if "lowest_loss" in stored.figures(stored.reference) else ""
    )
    head = (
        *("optimiser", "rate", "reached", "steps"),
        *(f"minus {stored.reference}", "CPU seconds", lowest or "lowest loss, nats"),
    )
    return table(head, (_optimiser_row(stored, name) for name in stored.methods))


def _optimiser_row(stored: Stored, name: str) -> tuple[str, ...]:
    method = stored.methods[name]
    reached = [bool(one["reached"]) for one in method["by_seed"]]
    figures = method["figures"]
    start = (f"`{name}`", _rate(method), f"{sum(reached)} of {len(reached)}")
    lowest = f"{figures.get('lowest_loss', figures.get('best_loss'))['mean']:.3g}"
    if not all(reached):
        return (*start, "", "", "", lowest)
    steps = spread(figures["steps"], digits=0)
    minus = spread(method["minus_reference"]["steps"], sign="+", digits=0)
    return (*start, steps, minus, spread(asdict(stored.seconds(name))), lowest)


def _rate(method: Mapping[str, Any]) -> str:
    edge = " (edge of the sweep)" if method["is_edge_of_sweep"] else ""
    return f"{method['rate']:g}{edge}"


def spread(interval: Interval, sign: str = "", digits: int = 3) -> str:
    mean, low, high = (f"{interval[name]:{sign}.{digits}f}" for name in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"
