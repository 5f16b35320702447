"""The engine's whole configuration: one frozen object, built at an entry point and passed down."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

from engine.errors import InvalidInput


def _default_num_threads() -> int:
    """The cores this process may use, which in a container is fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Limits and sizes of one engine. All counts are in tokens unless the name says otherwise."""

    device: str = "auto"
    """"auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N"."""

    dtype: str = "auto"
    """"auto" (bfloat16 on a GPU, float32 on a CPU), "float32", "bfloat16" or "float16"."""

    num_threads: int = 0
    """Threads for CPU arithmetic; 0 takes the cores this process may use."""

    max_batch_tokens: int = 16_384
    """A packed batch takes texts until this many tokens; one longer text is a batch of its own."""

    max_batch_sequences: int = 512
    """A packed batch takes at most this many texts."""

    max_queue_tokens: int = 4_194_304
    """Work waiting beyond this is refused at the door."""

    max_text_tokens: int = 1_048_576
    """Longest text for a model whose attention is linear."""

    max_softmax_text_tokens: int = 65_536
    """Longest text for a model with a softmax layer, whose cost grows with the square."""

    max_inputs: int = 2_048
    """Most texts in one call, as in OpenAI's contract."""

    drain_timeout_s: float = 30.0
    """How long stopping waits for accepted work before it fails what is left."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            smallest = 0 if field.name in ("num_threads", "drain_timeout_s") else 1
            if isinstance(value, int | float) and value < smallest:
                raise InvalidInput(
                    f"{field.name} must be at least {smallest}, got {value}",
                    code="invalid_setting",
                    param=field.name,
                    limit=smallest,
                    actual=value,
                )

    @property
    def compute_threads(self) -> int:
        return self.num_threads or _default_num_threads()
