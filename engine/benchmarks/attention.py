"""How fast attention alone runs, by length, kind and data type.

Queries, keys and values are random, in the shape of the model's heads: the time depends on the
shape only. Softmax over a long text runs a few heads at a time and the times are added, so that no
step occupies the device for long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from engine.benchmarks.encoder import Subject
from engine.model.embedding_model import EmbeddingModel
from engine.platform.device import torch_dtype
from kernels.attention import PackedSequences

_WHOLE_TOKENS = 4096
"""Up to this length all heads of softmax run in one step. Beyond, as many as take as long."""


@dataclass(frozen=True, kw_only=True)
class AttentionPlan:
    model: EmbeddingModel
    lengths: tuple[int, ...]
    attentions: tuple[str, ...]
    dtypes: tuple[str, ...]
    repeats: int


@dataclass(frozen=True, kw_only=True)
class AttentionRow:
    """One layer's attention over one text."""

    attention: str
    dtype: str
    tokens: int
    seconds: float  # median
    tokens_per_s: float
    repeats: int


def attention_rows(plan: AttentionPlan) -> Iterator[tuple[AttentionRow, ...]]:
    """One row for each point. Yields an empty tuple after every call, to let other work run."""
    for length, dtype in product(plan.lengths, plan.dtypes):
        for kind in plan.attentions:
            steps = _steps(Subject.of(plan.model, kind), length, dtype)
            seconds = []
            for repeat in range(plan.repeats + 1):
                spent = 0.0
                for step in steps:
                    spent += _seconds(step, plan.model.encoder.device)
                    yield ()
                if repeat:  # the first pass warms caches and memory
                    seconds.append(spent)
            yield (_row(kind, dtype, length, seconds),)


def _steps(subject: Subject, length: int, dtype: str) -> list[Callable[[], Tensor]]:
    """The calls that together compute one layer's attention, with all heads."""
    heads = subject.model.encoder.weights.num_heads
    q, k, v = _noise(subject.model, length, dtype)
    packed = PackedSequences.of([0, length], q.device)
    size = _heads_in_step(heads, length) if subject.attention == "softmax" else heads
    attend = subject.attend[0]

    def call(first: int) -> Callable[[], Tensor]:
        part = slice(first, first + size)
        return lambda: attend(q[:, part], k[:, part], v[:, part], packed)

    return [call(first) for first in range(0, heads, size)]


def _heads_in_step(heads: int, length: int) -> int:
    return max(1, min(heads, int(heads * (_WHOLE_TOKENS / length) ** 2)))


@torch.no_grad()
def _noise(model: EmbeddingModel, length: int, dtype: str) -> tuple[Tensor, Tensor, Tensor]:
    device = model.encoder.device
    heads, width = model.encoder.weights.num_heads, model.encoder.weights.head_dim
    generator = torch.Generator(device).manual_seed(0)
    noise = torch.randn(3, length, heads, width, generator=generator, device=device)
    q, k, v = noise.to(torch_dtype(dtype))
    return q, k, v


@torch.no_grad()
def _seconds(step: Callable[[], Tensor], device: torch.device) -> float:
    started_at = perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter() - started_at


def _row(kind: str, dtype: str, length: int, seconds: list[float]) -> AttentionRow:
    typical = median(seconds)
    return AttentionRow(
        attention=kind,
        dtype=dtype,
        tokens=length,
        seconds=typical,
        tokens_per_s=length / typical,
        repeats=len(seconds),
    )
