"""Optimisers of the weights [H, D, d] of one attention layer's queries, by name.

The papers' forms are as printed, the others as in docs/claims.md: the Fisher matrix of the queries'
weights is (X^T X) (x) (K^T diag(P^T 1) K - (P K)^T (P K)) / (N d) up to the Kronecker step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from engine.experiments.tasks.attention_problems import AttentionLayer

_DAMPING = 0.1  # of each factor's mean eigenvalue
_KEPT = 0.95  # of the factors, from step to step
_INVERT_EVERY = 5
_MOMENTUM = 0.9
_SQUARES_KEPT = 0.999
_EPSILON = 1e-8


class Stepper(Protocol):
    """Changes the weights that it was made with in place."""

    def step(self, gradient: Tensor) -> None: ...


@dataclass
class TorchStepper:
    """An optimiser of torch, over parameters that share the weights' memory."""

    optimiser: torch.optim.Optimizer
    parts: list[tuple[nn.Parameter, Callable[[Tensor], Tensor]]]

    def step(self, gradient: Tensor) -> None:
        for parameter, part in self.parts:
            parameter.grad = part(gradient)
        self.optimiser.step()


def adamw(layer: AttentionLayer, weights: Tensor, rate: float) -> Stepper:
    parameter = nn.Parameter(weights)
    optimiser = torch.optim.AdamW([parameter], lr=rate, weight_decay=0)
    return TorchStepper(optimiser, [(parameter, lambda gradient: gradient)])


def muon(layer: AttentionLayer, weights: Tensor, rate: float) -> Stepper:
    """A head's weights are a matrix of their own."""
    parameters = [nn.Parameter(head) for head in weights]
    optimiser = torch.optim.Muon(parameters, lr=rate, weight_decay=0)
    return TorchStepper(
        optimiser, [(one, partial(_of_head, head)) for head, one in enumerate(parameters)]
    )


def _of_head(head: int, gradient: Tensor) -> Tensor:
    return gradient[head]


@dataclass
class PrintedFisherAdam:
    """ "Attention as Natural Gradient", 4.1 word for word: solve (A A^T) step = gradient.

    It inherits Adam's name and uses nothing of Adam. By level (4.2), each head has its own A.
    """

    layer: AttentionLayer
    weights: Tensor
    rate: float
    by_level: bool

    def step(self, gradient: Tensor) -> None:
        patterns = self.layer.patterns(self.weights)
        if not self.by_level:
            patterns = patterns.mean(0)
        self.weights -= self.rate * torch.linalg.solve(patterns @ patterns.mT, gradient)


class Factors(NamedTuple):
    tokens: Tensor  # [D, D]
    keys: Tensor  # [H, d, d]


def fisher_factors(layer: AttentionLayer, patterns: Tensor) -> Factors:
    """The Kronecker factors of the patterns' Fisher matrix in the queries' weights."""
    mass, read = patterns.sum(1), patterns @ layer.keys
    tokens = layer.tokens.mT @ layer.tokens / len(layer.tokens)
    second = layer.keys.mT @ (mass[..., None] * layer.keys) - read.mT @ read
    return Factors(tokens, second / (len(layer.tokens) * layer.keys.shape[-1]))


def damped_inverse(matrix: Tensor) -> Tensor:
    """The inverse with a share of the mean eigenvalue added: the factors may be singular."""
    size = matrix.shape[-1]
    mean = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    identity = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    inverse: Tensor = torch.linalg.inv(matrix + _DAMPING * mean * identity)
    return inverse


@dataclass
class FisherAdam:
    """FA-Adam as corrected: the damped Kronecker Fisher turns the momentum, Adam gives its norm."""

    layer: AttentionLayer
    weights: Tensor
    rate: float
    _steps: int = 0
    _factors: Factors | None = None
    _inverses: Factors | None = None
    _mean: Tensor = field(init=False)
    _square: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self._mean, self._square = torch.zeros(2, *self.weights.shape, dtype=self.weights.dtype)

    def step(self, gradient: Tensor) -> None:
        inverses = self._refresh()
        self._steps += 1
        self._mean.lerp_(gradient, 1 - _MOMENTUM)
        self._square.lerp_(gradient.square(), 1 - _SQUARES_KEPT)
        mean = self._mean / (1 - _MOMENTUM**self._steps)
        square = self._square / (1 - _SQUARES_KEPT**self._steps)
        adam = mean / (square.sqrt() + _EPSILON)
        turned = inverses.tokens @ mean @ inverses.keys
        size = (norms_by_head(adam) / norms_by_head(turned).clamp_min(_EPSILON**2)) * self.rate
        self.weights -= size * turned

    def _refresh(self) -> Factors:
        new = fisher_factors(self.layer, self.layer.patterns(self.weights))
        if self._factors is None:
            self._factors = new
        else:
            pairs = zip(self._factors, new, strict=True)
            self._factors = Factors(*(_KEPT * old + (1 - _KEPT) * now for old, now in pairs))
        if self._inverses is None or self._steps % _INVERT_EVERY == 0:
            self._inverses = Factors(*(damped_inverse(factor) for factor in self._factors))
        return self._inverses


def norms_by_head(by_head: Tensor) -> Tensor:
    norms: Tensor = by_head.flatten(1).norm(dim=1)
    return norms[:, None, None]


@dataclass
class NaturalGradient:
    """The damped Kronecker Fisher alone, at a rate that falls with 1 / sqrt(t).

    With a schedule the Fisher matrix is that of patterns at temperature 1 / sqrt(t), as theorem 3
    of "Fisher Information Matrix Approximation" has it; without one, that of the patterns.
    """

    layer: AttentionLayer
    weights: Tensor
    rate: float
    has_schedule: bool
    _steps: int = 0

    def step(self, gradient: Tensor) -> None:
        self._steps += 1
        root = math.sqrt(self._steps)
        temperature = 1 / root if self.has_schedule else 1.0
        patterns = self.layer.patterns(self.weights, temperature)
        tokens, keys = fisher_factors(self.layer, patterns)
        natural = damped_inverse(tokens) @ gradient @ damped_inverse(keys)
        self.weights -= self.rate / root * natural


MakeStepper = Callable[[AttentionLayer, Tensor, float], Stepper]

STEPPERS: Mapping[str, MakeStepper] = MappingProxyType(
    {
        "adamw": adamw,
        "muon": muon,
        "fa_adam": FisherAdam,
        "fa_adam_printed": partial(PrintedFisherAdam, by_level=False),
        "multi_scale_printed": partial(PrintedFisherAdam, by_level=True),
        "natural": partial(NaturalGradient, has_schedule=False),
        "natural_temperature": partial(NaturalGradient, has_schedule=True),
    }
)
