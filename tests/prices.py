"""Loading a model measures what its texts cost, which takes seconds.

Tests measure a model of each shape once and share the result with the processes that they start.
"""

from __future__ import annotations

import atexit
import os
import pickle
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from engine.model.encoder import Encoder

_SMALL_WIDTH = 64
"""Up to here a measurement takes milliseconds, and is made anew."""


@cache
def prices_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="lln-prices-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def share_prices(folder: Path) -> None:
    for function in ("_measure_sizes", "_measure"):
        _share(function, folder)


def _share(function: str, folder: Path) -> None:
    """Makes one of the functions that measure look first for what another process has measured."""
    from engine.execution import cost_model

    measure = getattr(cost_model, function)

    def measured_once(encoder: Encoder) -> object:
        if encoder.weights.width <= _SMALL_WIDTH:
            return measure(encoder)
        stored = folder / f"{_shape(encoder)}.{function}"
        if stored.exists():
            return pickle.loads(stored.read_bytes())
        found = measure(encoder)
        complete = stored.with_name(f"{stored.name}.{os.getpid()}")
        complete.write_bytes(pickle.dumps(found))
        complete.rename(stored)
        return found

    mock.patch.object(cost_model, function, measured_once).start()


def _shape(encoder: Encoder) -> str:
    attention = "-".join(type(layer).__name__ for layer in encoder.attention)
    words = encoder.weights.words
    return f"{attention}-{words.shape[0]}x{words.shape[1]}-{words.dtype}-{words.device}"
