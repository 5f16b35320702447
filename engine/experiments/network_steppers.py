"""Optimisers of a small encoder, by name: what the contests on one layer compare, in a network.

Muon steps the matrices of the layers, at a scale that fits AdamW's rates, and AdamW the rest.
FA-Adam is the corrected form of `steppers.FisherAdam` on the weights of queries and keys; the rest
is AdamW's. `head_scaled` is AdamW with a scale for each head, in the same weights: the smaller the
Fisher matrix of its patterns, the longer its step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from engine.experiments.encoder import SmallEncoder
from engine.experiments.steppers import damped_inverse, norms_by_head

_KEPT = 0.95  # of the factors, from one refreshing to the next
_REFRESH_EVERY = 5
_MOST = 4.0  # how many times as long or short as Adam's a head's step may be
_MOMENTUM, _SQUARES_KEPT, _EPSILON = 0.9, 0.999, 1e-8  # AdamW's own

Optimisers: TypeAlias = Sequence[Optimizer]
"""They step together, each its own parameters."""
MakeOptimisers: TypeAlias = Callable[[SmallEncoder, float, float], Optimisers]
"""Makes the optimisers of a model, from a rate and a weight decay."""


def adamw(model: SmallEncoder, rate: float, weight_decay: float) -> Optimisers:
    return [AdamW(model.parameters(), lr=rate, weight_decay=weight_decay)]


def muon(model: SmallEncoder, rate: float, weight_decay: float) -> Optimisers:
    matrices = [parameter for parameter in model.layers.parameters() if parameter.dim() == 2]
    return [
        Muon(matrices, lr=rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
        AdamW(_others(model, matrices), lr=rate, weight_decay=weight_decay),
    ]


def fa_adam(model: SmallEncoder, rate: float, weight_decay: float) -> Optimisers:
    return _by_fisher(model, rate, weight_decay, _turned_by)


def head_scaled(model: SmallEncoder, rate: float, weight_decay: float) -> Optimisers:
    return _by_fisher(model, rate, weight_decay, _scaled_by)


def _by_fisher(model: SmallEncoder, rate: float, weight_decay: float, bend: Bend) -> Optimisers:
    weights = [projection.weight for projection in model.projections()]
    return [
        NetworkFisherAdam(model, rate, weight_decay, bend),
        AdamW(_others(model, weights), lr=rate, weight_decay=weight_decay),
    ]


def _others(model: nn.Module, taken: Iterable[Tensor]) -> list[nn.Parameter]:
    known = {id(parameter) for parameter in taken}
    return [parameter for parameter in model.parameters() if id(parameter) not in known]


NETWORK_STEPPERS: Mapping[str, MakeOptimisers] = MappingProxyType(
    {"adamw": adamw, "muon": muon, "fa_adam": fa_adam, "head_scaled": head_scaled}
)


class SideFactors(NamedTuple):
    """The Kronecker factors of the patterns' Fisher matrix in the weights of queries or of keys."""

    tokens: Tensor  # [H, D, D], or [1, D, D] where heads share it
    others: Tensor  # [H, d, d]: of the keys in the weights of queries, and the other way round


class NetworkFactors(NamedTuple):
    queries: SideFactors
    keys: SideFactors


@torch.no_grad()
def network_factors(x: Tensor, q: Tensor, k: Tensor) -> NetworkFactors:
    """The factors of the tokens [B, N, D] that a layer reads, its queries and keys [B, N, H, d].

    F_Q is (X^T X) (x) (K^T diag(c) K - Kbar^T Kbar) and F_K is (X^T diag(c) X - Xbar^T Xbar) (x)
    (Q^T Q) over N d, with patterns P, c = P^T 1, Kbar = P K and Xbar = P X.
    """
    queries, keys = q.transpose(1, 2), k.transpose(1, 2)  # [B, H, N, d]
    head_dim = q.shape[-1]
    patterns = (queries @ keys.mT / head_dim**0.5).softmax(-1)
    mass = patterns.sum(-2).unsqueeze(-1)  # [B, H, N, 1]
    rows = x.unsqueeze(1)  # [B, 1, N, D]
    count = x.shape[0] * x.shape[1]
    of_tokens = (rows.mT @ rows).sum(0) / count
    of_queries = (queries.mT @ queries).sum(0) / (count * head_dim)
    return NetworkFactors(
        SideFactors(of_tokens, _spread_read(patterns, mass, keys) / (count * head_dim)),
        SideFactors(_spread_read(patterns, mass, rows) / count, of_queries),
    )


def _spread_read(patterns: Tensor, mass: Tensor, rows: Tensor) -> Tensor:
    """sum_i Cov of rows under pattern i: [H, n, n] of rows [B, H or 1, N, n]."""
    read = patterns @ rows
    return (rows.mT @ (mass * rows) - read.mT @ read).sum(0)


Step: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""The step that is taken, from the momentum and Adam's step of each head [H, D, d]."""
Bend: TypeAlias = Callable[[SideFactors], Step]


def _turned_by(factors: SideFactors) -> Step:
    """FA-Adam's: the momentum turned by the damped Fisher matrix, as long as Adam's step."""
    inverses = SideFactors(*map(damped_inverse, factors))

    def step(mean: Tensor, adam: Tensor) -> Tensor:
        turned = inverses.tokens @ mean @ inverses.others
        lengths = norms_by_head(turned).clamp_min(_EPSILON**2)
        return turned * (norms_by_head(adam) / lengths)

    return step


def _scaled_by(factors: SideFactors) -> Step:
    """Adam's, as long for each head as moves its patterns about as much as those of others."""
    traces = _traces(factors.tokens) * _traces(factors.others)
    scales = (traces.log().mean() - traces.log()).div(2).exp().clamp(1 / _MOST, _MOST)
    return lambda mean, adam: scales[:, None, None] * adam


def _traces(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(_EPSILON**2)


class NetworkFisherAdam(Optimizer):
    """AdamW, but that the step of queries' and keys' weights is bent by their Fisher matrix."""

    def __init__(self, model: SmallEncoder, rate: float, weight_decay: float, bend: Bend) -> None:
        projections = model.projections()
        super().__init__([one.weight for one in projections], {"lr": rate})
        self._bend = bend
        self._decay, self._heads, self._length = weight_decay, model.shape.heads, model.shape.length
        self._read: dict[Tensor, tuple[Tensor, Tensor]] = {}
        for projection in projections:
            projection.register_forward_hook(self._remember)

    def _remember(self, module: nn.Module, arguments: tuple[Any, ...], out: Tensor) -> None:
        if torch.is_grad_enabled():
            assert isinstance(module, nn.Linear)
            self._read[module.weight] = (arguments[0].detach(), out.detach())

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        group = self.param_groups[0]
        for weight in group["params"]:
            self._step(weight, self.state[weight], group["lr"])

    def _step(self, weight: nn.Parameter, state: dict[str, Any], rate: float) -> None:
        gradient = weight.grad
        assert gradient is not None, "step comes after backward"
        if not state:
            state.update(steps=0, mean=torch.zeros_like(weight), square=torch.zeros_like(weight))
        if state["steps"] % _REFRESH_EVERY == 0:
            self._refresh(weight, state)
        state["steps"] += 1
        state["mean"].lerp_(gradient, 1 - _MOMENTUM)
        state["square"].lerp_(gradient.square(), 1 - _SQUARES_KEPT)
        mean = state["mean"] / (1 - _MOMENTUM ** state["steps"])
        square = state["square"] / (1 - _SQUARES_KEPT ** state["steps"])
        adam = mean / (square.sqrt() + _EPSILON)
        moves = list(adam.chunk(3))
        for side, step in enumerate(state["steps_of_sides"]):
            bent = step(self._by_head(mean.chunk(3)[side]), self._by_head(moves[side]))
            moves[side] = bent.mT.flatten(0, 1)
        weight.mul_(1 - rate * self._decay).sub_(rate * torch.cat(moves))

    def _by_head(self, rows: Tensor) -> Tensor:
        """[H, D, d] of rows [H d, D]."""
        return rows.view(self._heads, -1, rows.shape[-1]).mT

    def _refresh(self, weight: nn.Parameter, state: dict[str, Any]) -> None:
        x, out = self._read[weight]
        q, k, _ = out.view(
            -1, self._length, 3, self._heads, out.shape[-1] // 3 // self._heads
        ).unbind(2)
        new = network_factors(x.view(-1, self._length, x.shape[-1]), q, k)
        old = state.get("factors", new)
        state["factors"] = NetworkFactors(
            *(_averaged(*pair) for pair in zip(old, new, strict=True))
        )
        state["steps_of_sides"] = [self._bend(side) for side in state["factors"]]


def _averaged(old: SideFactors, new: SideFactors) -> SideFactors:
    return SideFactors(
        *(_KEPT * before + (1 - _KEPT) * now for before, now in zip(old, new, strict=True))
    )
