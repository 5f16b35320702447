"""A diagnosis as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from engine.types import Beside, Diagnosis, HeadValues

_COLUMN = 11


def diagnosis_lines(found: Diagnosis) -> Iterator[str]:
    yield f"{found.tokens} tokens, model {found.model}, mode {found.mode}"
    for reading in found.instruments:
        yield ""
        yield from _instrument_lines(found, reading)
    for one in found.left_out:
        yield ""
        yield f"{one.instrument}: left out; {one.reason}"


def _instrument_lines(found: Diagnosis, reading: HeadValues) -> Iterator[str]:
    yield f"{reading.instrument} ({reading.unit}; {reading.method}; {reading.compute_s:.2f} s)"
    columns = ["all heads"] if reading.scope == "layer" else [f"head {n}" for n in found.heads]
    yield "layer  " + "".join(f"{name:>{_COLUMN}}" for name in columns)
    errors = reading.error or (None,) * len(found.layers)
    for layer, values, error in zip(found.layers, reading.values, errors, strict=True):
        yield f"{layer:>5}  " + _cells(values)
        if error is not None and any(error):
            yield "  +/-  " + _cells(error)
    for part in reading.beside:
        yield from _beside_lines(part)


def _beside_lines(part: Beside) -> Iterator[str]:
    """Layer means of what has one number a head; the shape of what has more."""
    known = [np.asarray(values) for values in part.values if values is not None]
    if not known:
        return
    if all(values.ndim <= 1 for values in known):
        means = " ".join(f"{float(values.mean()):.4g}" for values in known)
        yield f"       {part.name} ({part.unit}), mean by layer: {means}"
    else:
        shapes = ", ".join(dict.fromkeys(" x ".join(map(str, one.shape)) for one in known))
        yield f"       {part.name} ({part.unit}): {shapes} a layer, in --json"


def _cells(values: Sequence[float]) -> str:
    return "".join(f"{value:>{_COLUMN}.4g}" for value in values)
