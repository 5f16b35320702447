"""What the tests of a GPU share: which device they test, what they read, and how alike two are.

`LLN_GPU_TESTS_DEVICE=cpu` puts the CPU in the GPU's place. It shows that the tests themselves work.
"""

from __future__ import annotations

import os
from functools import cache
from pydoc_data.topics import topics

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.engine import Engine

DEVICE = os.environ.get("LLN_GPU_TESTS_DEVICE", "cuda")

MARKS = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        DEVICE != "cpu" and not torch.cuda.is_available(), reason="there is no NVIDIA GPU"
    ),
]

LEAST_COSINE = {"float32": 1 - 1e-5, "bfloat16": 0.995}
"""To float32 on the CPU."""


def config(device: str = DEVICE, dtype: str = "float32", *, sweep_from: int = 0) -> EngineConfig:
    # Most CPUs have no units for bfloat16; the tests' own logic can do without.
    fallback = "float32" if device == "cpu" else "none"
    return EngineConfig(
        device=device, dtype=dtype, fallback_dtype=fallback, min_sweep_tokens=sweep_from
    )


@cache
def engine(
    name: str = "default", device: str = DEVICE, dtype: str = "float32", sweep_from: int = 0
) -> Engine:
    """Loaded once; closed by the end of the process."""
    return Engine.load(name, config=config(device, dtype, sweep_from=sweep_from))


@cache
def long_text() -> str:
    """Python's reference manual: real English of some 200,000 tokens."""
    return "\n\n".join(topics.values())


@cache
def manual_ids() -> tuple[int, ...]:
    (encoded,) = engine(device="cpu").model.tokenizer.encode_batch([long_text()])
    return tuple(encoded.content.tolist())


def text_of(tokens: int, start: int = 0) -> list[int]:
    """The ids of a text with so many tokens, two special ones included."""
    ids = manual_ids()
    assert start + tokens - 2 <= len(ids), "the manual is long enough"
    return list(ids[start : start + tokens - 2])


def cosines(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> NDArray[np.float64]:
    """Of each row with the same row."""
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    alike: NDArray[np.float64] = (a * b).sum(-1) / lengths
    return alike


def assert_alike(
    found: NDArray[np.float32], wanted: NDArray[np.float32], least: float, what: str
) -> None:
    assert found.shape == wanted.shape, f"{what}: {found.shape}, expected {wanted.shape}"
    assert np.isfinite(found).all(), f"{what}: not every number is finite"
    alike = cosines(found, wanted)
    worst = int(alike.argmin())
    assert alike[worst] >= least, (
        f"{what}: cosine {alike[worst]:.8f} in row {worst} of {alike.size}, at least {least:.8f} "
        f"wanted; all rows: {np.array2string(alike, precision=7, threshold=20)}"
    )
