"""What a training step takes of memory, and whether there is as much."""

from __future__ import annotations

import torch

from engine.errors import InsufficientMemory
from engine.platform.memory import free_bytes

_FLOATS_OF_A_TOKEN = 100
"""Floats a layer keeps for the backward, for each token and unit of width; a test measures it."""


def bytes_of_layers(*, tokens: int, layers: int, width: int) -> int:
    return 4 * tokens * layers * width * _FLOATS_OF_A_TOKEN


def check_memory(experiment: str, needed: int) -> None:
    """Raises InsufficientMemory if a step that needs this many bytes would not fit."""
    free = free_bytes(torch.device("cpu"))
    if needed > free:
        raise InsufficientMemory(
            f"a training step of {experiment} needs about {needed >> 20} MiB; "
            f"{free >> 20} MiB are free",
            limit=free,
            actual=needed,
        )
