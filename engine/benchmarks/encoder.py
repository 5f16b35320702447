"""How fast this machine encodes, by length and kind of attention: forward, or a training step.

A training step is the forward pass, a mean-squared loss against zero, the gradients of every
layer's weights, and a step of plain gradient descent on copies that are dropped afterwards. Each
layer is differentiated by itself, from the last to the first. That gives the same gradients as all
at once, and lets other work run between two layers. Embedding tables are not trained: their
gradient does not depend on the attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median
from time import perf_counter
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from engine.errors import InvalidInput, unknown_name
from engine.model.attention import KINDS, SlidingWindowAttention
from engine.model.baselines import BASELINES
from engine.model.embedding_model import EmbeddingModel
from engine.model.encoder import Attend, Encoder
from engine.model.layers import Layer, layers_of
from engine.model.positions import positions_in_sequences
from engine.model.weight_overrides import dense, named_tensors
from engine.platform.memory import PeakMemory
from kernels.attention import PackedSequences

MAX_POINTS = 64
MAX_REPEATS = 100
MAX_TRAINING_TOKENS = 32_768
"""A training step keeps every layer's activations, so its longest text is shorter."""

ATTENTIONS: tuple[str, ...] = (*KINDS, *(name for name in BASELINES if name not in KINDS))
"""What a model can be timed with: its own kinds, and the baselines, which need no calibration."""

RunPass: TypeAlias = Callable[[Tensor], Iterator[object]]
"""One pass over token ids, as an iterator over its steps."""

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
        # Layers with a sliding window keep it.
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
                raise unknown_name("attention", kind, ATTENTIONS, param="attentions")
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
    peak_bytes: int | None = None  # beyond the memory in use before; None if unknown


def encoder_rows(plan: EncoderPlan) -> Iterator[tuple[EncoderRow, ...]]:
    """One row for each point. Yields an empty tuple after every layer, to let other work run."""
    for length, subject in product(plan.lengths, plan.subjects):
        run_pass = _pass_of(subject, plan.training)
        memory, seconds = PeakMemory(subject.model.encoder.device), []
        for repeat in range(plan.repeats + 1):
            spent = 0.0
            for layer_s in _timed(run_pass, subject.model, length, None if repeat else memory):
                spent += layer_s
                yield ()
            if repeat:  # the first pass warms caches, and measures memory
                seconds.append(spent)
        yield (_row(subject, plan, length, seconds, memory.bytes),)


def _pass_of(subject: Subject, training: bool) -> RunPass:
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
    run_pass: RunPass, model: EmbeddingModel, length: int, memory: PeakMemory | None
) -> Iterator[float]:
    """The seconds of each step over random tokens; `memory` measures the peak if given."""
    device = model.encoder.device
    ids = np.random.default_rng(0).integers(0, len(model.encoder.weights.words), length)
    steps = run_pass(torch.from_numpy(ids).to(device))
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


class _ForwardPass(NamedTuple):
    """What a layer's backward pass needs of its forward pass."""

    input: Tensor  # [T, W] a leaf
    output: Tensor  # [T, W]


class TrainableLayers:
    """Copies of an encoder's layers that can be trained. Made once, used for many steps."""

    def __init__(
        self, encoder: Encoder, attention: Sequence[Attend], *, rate: float = 1e-6
    ) -> None:
        self.tensors = {
            name: tensor.detach().clone().requires_grad_()
            for name, tensor in named_tensors(encoder.weights)
            if name.startswith("layers.")
        }
        weights = dense(encoder.weights, self.tensors)
        self._encoder = encoder
        self._attention = tuple(attention)
        self._layers = layers_of(weights)
        self._rate = rate

    def step(self, ids: Tensor, bounds: Sequence[int]) -> Iterator[None]:
        """One training step. Yields after every layer, forward and backward."""
        done = []
        with torch.no_grad():
            x = self._encoder.first_states(ids, bounds)
        for layer, attend in zip(self._layers, self._attention, strict=True):
            done.append(self._forward(layer, attend, x, bounds))
            x = done[-1].output.detach()
            yield
        gradient = 2 * x / x.numel()
        for index in reversed(range(len(self._layers))):
            gradient = self._backward(done.pop(), self._tensors_of(index), gradient)
            yield

    def _tensors_of(self, index: int) -> list[Tensor]:
        prefix = f"layers.{index}."
        return [tensor for name, tensor in self.tensors.items() if name.startswith(prefix)]

    @torch.enable_grad()
    def _forward(
        self, layer: Layer, attend: Attend, x: Tensor, bounds: Sequence[int]
    ) -> _ForwardPass:
        entered = x.detach().requires_grad_()
        packed = PackedSequences.of(bounds, x.device)
        q, k, v = layer.project(entered, positions_in_sequences(bounds, x.device))
        return _ForwardPass(entered, layer.finish(attend(q, k, v, packed).flatten(1), entered))

    def _backward(
        self, done: _ForwardPass, parameters: Sequence[Tensor], gradient: Tensor
    ) -> Tensor:
        """Update a layer's parameters and return the gradient of its input."""
        found = torch.autograd.grad(done.output, [done.input, *parameters], gradient)
        with torch.no_grad():
            for parameter, of_parameter in zip(parameters, found[1:], strict=True):
                parameter -= self._rate * of_parameter
        return found[0]
