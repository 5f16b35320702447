"""Readings leave the engine as finite numbers, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from engine.attention_types import SkippedInstrument
from engine.diagnostics.head_readings import TimedReading
from engine.diagnostics.readings import Quantity, Reading


def keep_finite(
    found: Mapping[str, TimedReading], layer: int
) -> tuple[dict[str, TimedReading], tuple[SkippedInstrument, ...]]:
    """The readings of a layer without those, and without those quantities beside them, that are not
    finite in value and error; and for each of them why it is left out."""
    kept: dict[str, TimedReading] = {}
    left_out: list[SkippedInstrument] = []
    for name, timed in found.items():
        reading = timed.reading
        lost = [part for part, quantity in reading.beside.items() if not _is_finite(quantity)]
        if not _is_finite(reading):
            left_out.append(_left_out(name, f"layer {layer}: its value is not a finite number"))
            continue
        left_out += [
            _left_out(name, f"layer {layer}: {part} is not a finite number") for part in lost
        ]
        beside = {part: one for part, one in reading.beside.items() if part not in lost}
        kept[name] = timed._replace(reading=replace(reading, beside=beside)) if lost else timed
    return kept, tuple(left_out)


def _left_out(name: str, reason: str) -> SkippedInstrument:
    return SkippedInstrument(instrument=name, reason=reason)


def _is_finite(part: Reading | Quantity) -> bool:
    numbers = [part.values] if part.error is None else [part.values, part.error]
    return all(bool(np.isfinite(one).all()) for one in numbers)


def one_each(left_out: Iterable[SkippedInstrument]) -> tuple[SkippedInstrument, ...]:
    """One entry for each instrument, with all of its reasons."""
    reasons: dict[str, list[str]] = {}
    for one in left_out:
        reasons.setdefault(one.instrument, []).append(one.reason)
    return tuple(_left_out(name, "; ".join(each)) for name, each in reasons.items())
