"""How fast this machine encodes, by length and kind of attention: forward, or a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median
from time import perf_counter
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from engine.benchmarks.memory import PeakMemory
from engine.benchmarks.training import TrainableLayers
from engine.errors import InvalidInput, shown
from engine.model.attention import KINDS, SlidingWindowAttention
from engine.model.baselines import BASELINES
from engine.model.embedding_model import EmbeddingModel
from engine.model.encoder import Attend

MAX_POINTS = 64
MAX_REPEATS = 100
MAX_TRAINING_TOKENS = 32_768
"""A training step keeps every layer's activations, so it ends well before a forward pass does."""

ATTENTIONS: tuple[str, ...] = (*KINDS, *(name for name in BASELINES if name not in KINDS))
"""What a model can be timed with: its own kinds, and the baselines, which need no calibration."""


Steps: TypeAlias = Callable[[Tensor], Iterator[object]]
"""One pass over token ids, in steps."""

_END = object()


@dataclass(frozen=True)
class Subject:
    """A model's weights under one kind of attention."""

    attention: str
    model: EmbeddingModel
    attend: tuple[Attend, ...]  # by layer

    @classmethod
    def of(cls, model: EmbeddingModel, kind: str) -> Subject:
        if kind in KINDS:
            model = model.with_attention(kind)
            return cls(kind, model, model.encoder.attention)
        # Layers that were trained to look no further than a window go on doing so.
        return cls(
            kind,
            model,
            tuple(
                own if isinstance(own, SlidingWindowAttention) else BASELINES[kind]
                for own in model.encoder.attention
            ),
        )


@dataclass(frozen=True, kw_only=True)
class EncoderPlan:
    lengths: tuple[int, ...]
    subjects: tuple[Subject, ...]  # the same weights under each attention
    repeats: int
    training: bool = False

    @classmethod
    def checked(
        cls,
        lengths: Sequence[int],
        attentions: Sequence[str],
        repeats: int,
        model: EmbeddingModel,
        *,
        training: bool = False,
    ) -> EncoderPlan:
        _check_count("repeats", repeats, MAX_REPEATS)
        _check_count("lengths", len(lengths) * len(attentions), MAX_POINTS)
        for kind in attentions:
            if kind not in ATTENTIONS:
                known = ", ".join(ATTENTIONS)
                raise InvalidInput(
                    f"attentions holds {shown(kind)!r}; known are {known}",
                    param="attentions",
                    limit=known,
                    actual=kind,
                )
        subjects = tuple(Subject.of(model, kind) for kind in attentions)
        longest = min(subject.model.info.max_tokens for subject in subjects)
        if training:
            longest = min(longest, MAX_TRAINING_TOKENS)
        for length in lengths:
            _check_count("lengths", length, longest)
        return cls(lengths=tuple(lengths), subjects=subjects, repeats=repeats, training=training)


@dataclass(frozen=True, kw_only=True)
class EncoderRow:
    """One measured point."""

    attention: str
    tokens: int
    seconds: float  # median
    tokens_per_s: float
    repeats: int
    work: Literal["forward", "training"] = "forward"
    peak_bytes: int | None = None  # beyond what was held before; None where nobody can tell


def encoder_rows(plan: EncoderPlan) -> Iterator[tuple[EncoderRow, ...]]:
    """One row a point. Yields nothing after every layer, so that other work can run there."""
    for length, subject in product(plan.lengths, plan.subjects):
        steps_of = _steps_of(subject, plan.training)
        memory, seconds = PeakMemory(subject.model.encoder.device), []
        for repeat in range(plan.repeats + 1):
            spent = 0.0
            for layer_s in _timed(steps_of, subject.model, length, None if repeat else memory):
                spent += layer_s
                yield ()
            if repeat:  # the first pass warms caches, and is the one whose memory is watched
                seconds.append(spent)
        yield (_row(subject, plan, length, seconds, memory.bytes),)


def _steps_of(subject: Subject, training: bool) -> Steps:
    if not training:
        return partial(_forward, subject)
    layers = TrainableLayers(subject.model.encoder, subject.attend)
    return lambda ids: layers.step(ids, [0, len(ids)])


def _forward(subject: Subject, ids: Tensor) -> Iterator[object]:
    states = subject.model.encoder.walk(ids, [0, len(ids)], attention=subject.attend)
    while True:
        with torch.no_grad():
            layer = next(states, None)
        if layer is None:
            return
        yield layer


def _timed(
    steps_of: Steps, model: EmbeddingModel, length: int, memory: PeakMemory | None
) -> Iterator[float]:
    """The seconds of each step over so many random tokens, while the memory is watched if given."""
    device = model.encoder.device
    ids = np.random.default_rng(0).integers(0, len(model.encoder.weights.words), length)
    steps = steps_of(torch.from_numpy(ids).to(device))
    while True:
        with memory.watching() if memory else nullcontext():
            started_at = perf_counter()
            if next(steps, _END) is _END:
                return
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds = perf_counter() - started_at
        yield seconds


def _row(
    subject: Subject,
    plan: EncoderPlan,
    length: int,
    seconds: Sequence[float],
    peak_bytes: int | None,
) -> EncoderRow:
    typical = median(seconds)
    return EncoderRow(
        attention=subject.attention,
        tokens=length,
        seconds=typical,
        tokens_per_s=length / typical,
        repeats=len(seconds),
        work="training" if plan.training else "forward",
        peak_bytes=peak_bytes,
    )


def _check_count(param: str, value: int, limit: int) -> None:
    if not 1 <= value <= limit:
        raise InvalidInput(
            f"{param} must be 1 to {limit}, got {value}", param=param, limit=limit, actual=value
        )
