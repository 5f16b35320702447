"""Attention matrices by their definition, dense and in float64, and random heads to read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.diagnostics import Effort, HeadView, Quantity, Reading, measure
from engine.diagnostics.head_kind import DELIMITER, LOCAL_TOKENS, SPECIAL
from engine.types import Attention

KINDS: tuple[Attention, ...] = get_args(Attention)
NUM_HEADS = 3
HEAD_SIZE = 16
WIDTH = 24
DENSE = Effort(max_dense_tokens=512, max_exact_tokens=4_096)

Floats = NDArray[np.float64]


def make_view(
    kind: Attention,
    length: int,
    *,
    scale: float = 1.0,
    sinks: tuple[int, int] = (0, 0),
    block_size: int = 48,
    seed: int = 0,
    maps: bool = False,
    dtype: torch.dtype = torch.float64,
) -> HeadView:
    """Random heads, each with parameters of its own."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k = (scale * random(length, NUM_HEADS, HEAD_SIZE) + 0.3 for _ in range(2))
    head_map = (0.3 * random(NUM_HEADS, HEAD_SIZE, HEAD_SIZE), random(NUM_HEADS, HEAD_SIZE))
    return HeadView(
        q=q.to(dtype),
        k=k.to(dtype),
        v=random(length, NUM_HEADS, HEAD_SIZE).to(dtype),
        x=random(length, WIDTH).to(dtype) + 0.2,
        out=random(NUM_HEADS, HEAD_SIZE, WIDTH).to(dtype),
        attention=kind,
        alpha=torch.tensor([1.0, 1.7, 2.2]),
        beta=torch.tensor([1.0, 0.6, 1.4]),
        mix=torch.tensor([0.5, 0.15, 0.8]),
        block_size=block_size,
        num_sinks=sinks,
        token_kinds=torch.arange(length) * 7 % 5 % 3,  # words, special tokens and delimiters
        q_map=head_map if maps else None,
        k_map=(None, head_map[1]) if maps else None,
    )


@lru_cache(maxsize=2)  # one view is looked at by many instruments
def dense(view: HeadView) -> Tensor:
    """The attention matrix, not to be written to: [H, N, N]."""
    softmax = scores(view).softmax(-1)
    if view.attention == "softmax":
        return softmax
    diag = scores(view).masked_fill(~mask(view), -math.inf).softmax(-1)
    if view.attention == "block_diagonal":
        return diag
    lln = dense_lln(view)
    if view.attention == "lln":
        return lln
    assert view.mix is not None
    mix = view.mix.double().expand(view.num_tokens, view.num_heads).t().unsqueeze(-1)
    return mix * lln + (1 - mix) * diag


def seen(view: HeadView) -> Tensor:
    """Which keys a row can see at all: [N, N]."""
    return mask(view) if view.attention == "block_diagonal" else torch.ones_like(mask(view))


def scores(view: HeadView) -> Tensor:
    scale = math.sqrt(view.head_size)
    return torch.einsum("ihd,jhd->hij", view.q.double(), view.k.double()) / scale


def mask(view: HeadView) -> Tensor:
    """Which keys Diag shows: [N, N]."""
    position = torch.arange(view.num_tokens)
    first, last = view.num_sinks
    sink = (position < first) | (position >= view.num_tokens - last)
    block = position // view.block_size
    return (block[:, None] == block) | sink


def dense_lln(view: HeadView) -> Tensor:
    """log sum_c exp(alpha q_ic + beta k_jc), normalised along the row."""
    queries = exponents(view.q, view.q_map, view.alpha)
    keys = exponents(view.k, view.k_map, view.beta)
    rows = [torch.logsumexp(row[None, :] + keys, dim=-1) for row in queries]  # [N, H] each
    return torch.stack(rows).permute(2, 0, 1).softmax(-1)


def exponents(
    x: Tensor, head_map: tuple[Tensor | None, Tensor] | None, scale: Tensor | None
) -> Tensor:
    assert scale is not None
    x = x.double()
    if head_map is not None:
        weight, bias = head_map
        x = x if weight is None else torch.einsum("thc,hcd->thd", x, weight.double())
        x = x + bias
    return scale.double()[:, None] * x


def kind_shares(view: HeadView) -> dict[str, Tensor]:
    """Of each kind, the mean over rows of what lies beyond even attention, with a mask for each
    kind, and the first that fits a key: [H]."""
    assert view.token_kinds is not None
    length, kinds = view.num_tokens, view.token_kinds
    offset = torch.arange(length) - torch.arange(length).unsqueeze(1)
    left = torch.ones(length, length, dtype=torch.bool)
    masks = {
        "sinks": left & (kinds == SPECIAL),
        "previous": offset == -1,
        "next": offset == 1,
        "self": offset == 0,
        "delimiters": left & (kinds == DELIMITER),
        "local": offset.abs() <= LOCAL_TOKENS,
        "content": left,
    }
    shares = {"diffuse": dense(view).clamp_max(1 / length).sum(-1).mean(1)}
    excess = (dense(view) - 1 / length).clamp_min(0)
    for kind, mask in masks.items():
        shares[kind] = (excess * (mask & left)).sum(-1).mean(1)
        left = left & ~mask
    return shares


def read(view: HeadView, name: str, effort: Effort | None = None) -> Reading:
    reading = measure(view, [name], effort)[name]
    check_finite(reading)
    return reading


def beside(reading: Reading, names: Sequence[str]) -> list[Floats]:
    return [reading.beside[name].values for name in names]


def check_finite(reading: Reading) -> None:
    """Every number is there, and an error stands beside whatever has one."""
    assert reading.values.shape[0] == len(reading.values)
    parts: list[Reading | Quantity] = [reading, *reading.beside.values()]
    for part in parts:
        assert part.values.dtype == np.float64
        assert np.isfinite(part.values).all()
        assert part.error is None or part.error.shape == part.values.shape
        assert part.error is None or np.isfinite(part.error).all()
    assert reading.method
    assert reading.cost
