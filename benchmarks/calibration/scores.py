"""How far readings are from the truth, in units of their stated errors, and the table of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calibration.dense_truth import VALUE, DenseTruth, Floats
from engine.diagnostics import Effort, HeadView, Quantity, Reading, measure

READINGS: Mapping[str, tuple[Effort, tuple[str, ...] | None]] = {
    "sampled": (Effort(mode="sampled"), None),
    "auto": (Effort(), ("effective_rank", "attention_fisher")),
    "long": (
        Effort(mode="sampled", max_matrix_tokens=1, max_dense_tokens=1),
        ("spectral_gap", "stationary", "effective_rank"),
    ),
}
"""What is read, and which instruments: all in mode "sampled"; those that are estimates in mode
"auto" too, up to 1,024 tokens; and those that have other methods beyond 2,048 tokens by these."""

SEEDS = 2
LONG_EVERY = 3
"""Every so many texts are read as long ones are, which takes the most time."""

UNSTATED = 9_999.0
"""Stands for the ratio to an error of 0, and is the largest ratio recorded."""

_SHOWN = {"softmax": "softmax", "lln_diag": "LLN+Diag"}
_ROUNDING = 1e-7
"""Relative differences below this count as none: instruments take logarithms in float32."""


@dataclass
class Score:
    """How one quantity's errors hold."""

    count: int = 0
    within: list[int] = field(default_factory=lambda: [0, 0, 0])
    """How many lie within 1, 2, 3 stated errors."""
    worst: float = 0.0
    """The largest difference in stated errors."""
    width: float = 0.0
    """The sum of the stated errors, each relative to the true value."""
    off: float = 0.0
    """The largest difference relative to the true value, of values without an error."""
    exact: int = 0
    """How many values were stated without an error."""

    def add(self, other: Score) -> None:
        self.count += other.count
        self.within = [a + b for a, b in zip(self.within, other.within, strict=True)]
        self.worst = max(self.worst, other.worst)
        self.width += other.width
        self.off = max(self.off, other.off)
        self.exact += other.exact

    def to_json(self) -> list[float]:
        numbers = (self.count, *self.within, self.worst, self.width, self.off, self.exact)
        return [float(f"{number:.4g}") for number in numbers]

    @classmethod
    def from_json(cls, stored: list[float]) -> Score:
        count, one, two, three, worst, width, off, exact = stored
        within = [int(one), int(two), int(three)]
        return cls(int(count), within, worst, width, off, int(exact))


def score_heads(view: HeadView, seed: int, only: Iterable[str] | None = None) -> dict[str, Score]:
    """The scores of the heads of one layer, by reading, instrument and quantity."""
    truth = DenseTruth(view)
    known: dict[str, Mapping[str, Floats]] = {}
    found: dict[str, Score] = {}
    for label, (effort, names) in READINGS.items():
        if label == "long" and seed % LONG_EVERY:
            continue
        seeds = range(SEEDS) if label == "sampled" else range(1)
        for turn in seeds:
            own = Effort(**{**vars(effort), "seed": SEEDS * seed + turn})
            chosen = names if turn == 0 else _drawn_anew(names)
            if only is not None:
                chosen = tuple(name for name in only if chosen is None or name in chosen)
            for name, reading in measure(view, chosen, own).items():
                if name not in known:
                    known[name] = truth.of(name)
                for quantity, score in _scores_of(reading, known[name]):
                    found.setdefault(f"{label} {name} {quantity}", Score()).add(score)
    return found


def _drawn_anew(names: tuple[str, ...] | None) -> tuple[str, ...]:
    """What depends on the rows drawn: all but spectra, which take the most time."""
    assert names is None, "all instruments in mode sampled"
    return _ROW_INSTRUMENTS


_ROW_INSTRUMENTS = (
    "entropy",
    "lognormality",
    "mutual_information",
    "head_scale",
    "similarity",
    "pruning",
    "attention_fisher",
    "weight_fisher",
    "softmax_divergence",
    "head_kind",
)


def _scores_of(reading: Reading, truth: Mapping[str, Floats]) -> Iterator[tuple[str, Score]]:
    own = Quantity(values=reading.values, unit=reading.unit, error=reading.error)
    for quantity, one in {VALUE: own, **reading.beside}.items():
        if quantity in truth:
            yield quantity, score_values(one.values, one.error, truth[quantity])


def score_values(values: Floats, errors: Floats | None, truth: Floats) -> Score:
    """The score of values with their errors; None where they are said to be exact."""
    apart = np.abs(values - truth)
    size = np.maximum(np.abs(truth), np.finfo(float).tiny)
    if errors is None:
        return Score(exact=values.size, off=float(_capped(apart / size).max()))
    beyond = np.where(apart > _ROUNDING * np.maximum(size, _ROUNDING), apart, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = _capped(np.where(beyond > 0, beyond / errors, 0.0))
    return Score(
        count=values.size,
        within=[int((ratio <= bound).sum()) for bound in (1, 2, 3)],
        worst=float(ratio.max()),
        width=float(_capped(errors / size).sum()),
    )


def _capped(ratio: Floats) -> Floats:
    return np.nan_to_num(ratio, nan=UNSTATED, posinf=UNSTATED).clip(max=UNSTATED)


def read_raw(path: Path) -> list[dict[str, Any]]:
    """One entry for each text and attention."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def totals(raw: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Score]:
    """Scores by attention and by reading, instrument and quantity, each text and attention once."""
    found: dict[tuple[str, str], Score] = {}
    for entry in {(one["text"], one["attention"]): one for one in raw}.values():
        for name, stored in entry["scores"].items():
            score = found.setdefault((entry["attention"], name), Score())
            score.add(Score.from_json(stored))
    return found


def without(
    raw: Iterable[Mapping[str, Any]], again: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The first results less those of the instruments that were read again."""
    mended = {name.split()[1] for entry in again for name in entry["scores"]}
    return [
        {
            **entry,
            "scores": {
                name: score
                for name, score in entry["scores"].items()
                if name.split()[1] not in mended
            },
        }
        for entry in raw
    ]


def table_rows(raw: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Cells of a table: of quantities that ever have an error."""
    by_name = totals(raw)
    for attention, shown in _SHOWN.items():
        for (kind, name), score in by_name.items():
            if kind != attention or score.count == 0:
                continue
            label, instrument, quantity = name.split()
            shares = (f"{100 * part / score.count:.1f}" for part in score.within)
            worst = f"{score.worst:.1f}" if score.worst < UNSTATED else "no error"
            relative = score.width / score.count
            stated = score.count / (score.count + score.exact)
            yield (
                shown,
                _called(instrument, quantity),
                label,
                f"{score.count:,}",
                f"{100 * stated:.0f}",
                *shares,
                worst,
                f"{relative:.2g}" if math.isfinite(relative) else "",
            )


def exact_rows(raw: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Cells of a table: of values that state no error, how far they are from the truth."""
    for (attention, name), score in totals(raw).items():
        if score.exact:
            label, instrument, quantity = name.split()
            yield (
                _SHOWN[attention],
                _called(instrument, quantity),
                label,
                f"{score.exact:,}",
                f"{score.off:.0e}",
            )


def _called(instrument: str, quantity: str) -> str:
    return f"`{instrument}`" if quantity == VALUE else f"`{instrument}`: `{quantity}`"


def measured_on(raw: Sequence[Mapping[str, Any]]) -> str:
    """What the table was made from, in a sentence."""
    texts = {entry["text"] for entry in raw}
    corpora = {text.partition("/")[0] for text in texts}
    tokens = [entry["tokens"] for entry in raw]
    commits = ", ".join(f"`{one}`" for one in sorted({entry["commit"] for entry in raw}))
    lengths = f"{min(tokens)} to {max(tokens):,} tokens"
    return (
        f"{len(texts)} texts of {len(corpora)} corpora, of {lengths}, "
        f"each read by the 12 heads of one layer, the layers in turn; commit {commits}."
    )


HEAD = (
    "attention",
    "quantity",
    "read",
    "values",
    "with an error, %",
    "within 1, %",
    "within 2, %",
    "within 3, %",
    "worst",
    "error, relative",
)
EXACT_HEAD = ("attention", "quantity", "read", "values", "largest relative difference")
