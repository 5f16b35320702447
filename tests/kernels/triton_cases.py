"""Calls of every form, and the same in plain torch: shared by the Triton kernels' tests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from kernels.attention import reference
from kernels.attention.arguments import Gate, Map, Sinks

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Case:
    """One call, named by what is unusual about it."""

    lengths: tuple[int, ...] = (63, 0, 130)
    head_dim: int = 32
    num_heads: int = 1
    block_size: int = 64
    sinks: tuple[int, int] = (0, 0)
    mix_by_token: bool = False
    gate: bool = False  # and a factor of each sequence's mix
    weights: bool = False
    biases: bool = False
    scale: float = 1.0
    dtype: torch.dtype = field(default=torch.float32)


OF_THREE_HEADS = (
    Case((130, 0, 1), num_heads=3, head_dim=20, sinks=(2, 1), mix_by_token=True),
    Case((63, 66), num_heads=3, weights=True, biases=True, dtype=torch.bfloat16),
)


@dataclass(frozen=True)
class Inputs:
    q: Tensor
    k: Tensor
    v: Tensor
    alpha: Tensor
    beta: Tensor
    mix: Tensor | Gate
    mix_scale: Tensor | None
    cu_seqlens: Tensor
    q_map: Map | None
    k_map: Map | None

    @property
    def bounds(self) -> list[slice]:
        return [slice(start, end) for start, end in pairwise(self.cu_seqlens.tolist())]


def make_inputs(case: Case, seed: int = 0) -> Inputs:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    rows, heads, dim = sum(case.lengths), case.num_heads, case.head_dim
    per_sequence = (len(case.lengths), heads)
    cu_seqlens = torch.tensor((0, *case.lengths)).cumsum(0, dtype=torch.int32)

    def affine() -> Map | None:
        if not case.biases:
            return None
        bias = random(heads, dim).to(DEVICE)
        if not case.weights:
            return None, bias
        return (random(heads, dim, dim) / math.sqrt(dim)).to(DEVICE), bias

    def mix() -> Tensor | Gate:
        if case.gate:
            return Gate(random(heads, dim).to(DEVICE), random(heads).to(DEVICE))
        return random(*((rows, heads) if case.mix_by_token else (heads,))).sigmoid().to(DEVICE)

    return Inputs(
        q=(case.scale * random(rows, heads, dim)).to(DEVICE, case.dtype),
        k=(case.scale * random(rows, heads, dim)).to(DEVICE, case.dtype),
        v=random(rows, heads, dim).to(DEVICE, case.dtype),
        alpha=(1 + 0.3 * random(*per_sequence)).to(DEVICE),
        beta=(1 + 0.3 * random(*per_sequence)).to(DEVICE),
        mix=mix(),
        mix_scale=random(len(case.lengths)).sigmoid().to(DEVICE) if case.gate else None,
        cu_seqlens=cu_seqlens.to(DEVICE),
        q_map=affine(),
        k_map=affine(),
    )


def only(inputs: Inputs, index: int) -> Inputs:
    """One sequence as a batch of its own."""
    rows = inputs.bounds[index]
    return replace(
        inputs,
        q=inputs.q[rows],
        k=inputs.k[rows],
        v=inputs.v[rows],
        alpha=inputs.alpha[index : index + 1],
        beta=inputs.beta[index : index + 1],
        mix=mix_of(inputs.mix, rows),
        mix_scale=None if inputs.mix_scale is None else inputs.mix_scale[index : index + 1],
        cu_seqlens=torch.tensor([0, rows.stop - rows.start], dtype=torch.int32, device=DEVICE),
    )


def mix_of(mix: Tensor | Gate, rows: slice) -> Tensor | Gate:
    """Of some rows."""
    return mix if isinstance(mix, Gate) or mix.dim() == 1 else mix[rows]


def expect_lln_diag(inputs: Inputs, case: Case) -> Tensor:
    return reference.lln_diag_attention(
        **vars(inputs), block_size=case.block_size, num_sinks=case.sinks
    )


def plain_lln_diag(inputs: Inputs, case: Case) -> Tensor:
    """Plain torch operations in the inputs' own dtype, to compare rounding errors with."""
    out = torch.empty_like(inputs.v)
    q = apply_map(inputs.q, inputs.q_map)
    k = apply_map(inputs.k, inputs.k_map)
    for index, rows in enumerate(inputs.bounds):
        alpha, beta = (x[index, :, None].to(q.dtype) for x in (inputs.alpha, inputs.beta))
        score = beta * k[rows]
        pi = (alpha * q[rows] + score.logsumexp(0)).softmax(-1)
        mean = torch.einsum("jhc,jhd->hcd", score.softmax(0), inputs.v[rows])
        lln = torch.einsum("ihc,hcd->ihd", pi, mean)
        diag = plain_diag(inputs.q[rows], inputs.k[rows], inputs.v[rows], case)
        share = plain_shares(inputs, index).unsqueeze(-1)
        out[rows] = share * lln + (1 - share) * diag
    return out


def plain_shares(inputs: Inputs, index: int) -> Tensor:
    rows, dtype = inputs.bounds[index], inputs.q.dtype
    mix = mix_of(inputs.mix, rows)
    if isinstance(mix, Gate):
        weight, bias = (x.to(dtype) for x in mix)
        mix = torch.sigmoid(torch.einsum("thd,hd->th", inputs.q[rows], weight) + bias)
    scale = 1.0 if inputs.mix_scale is None else inputs.mix_scale[index].to(dtype)
    return mix.to(dtype) * scale


def plain_diag(q: Tensor, k: Tensor, v: Tensor, case: Case) -> Tensor:
    sinks = Sinks(*case.sinks)
    visible = reference.visible_keys(q.shape[0], case.block_size, sinks, q.device)
    score = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(case.head_dim)
    return torch.einsum("hij,jhd->ihd", score.masked_fill(~visible, -math.inf).softmax(-1), v)


def apply_map(x: Tensor, affine: Map | None) -> Tensor:
    if affine is None:
        return x
    weight, bias = affine
    if weight is not None:
        x = torch.einsum("thc,hcd->thd", x, weight.to(x.dtype))
    return x + bias.to(x.dtype)


def assert_as_exact(found: Tensor, plain: Tensor, truth: Tensor, *, sharpness: float = 1.0) -> None:
    """At most twice the error of plain torch, plus a few last places of float32.

    `sharpness` is how large scores are: plain torch may round large ones well by luck.
    """
    assert found.dtype == plain.dtype
    floor = 4 * sharpness * torch.finfo(torch.float32).eps * float(truth.abs().max())
    assert largest_error(found, truth) <= 2 * largest_error(plain, truth) + floor


def largest_error(x: Tensor, truth: Tensor) -> float:
    error = (x.double() - truth).abs().max()
    assert bool(torch.isfinite(error)), "not every value was written, or one is not finite"
    return float(error)
