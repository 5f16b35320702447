"""The instruments that callers import: arguments are checked, then measured on their device.

They have no gradient, and read cu_seqlens on the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.attention import arguments, custom_op
from kernels.attention.arguments import AffineMap, Map
from kernels.attention.functional import lln_state
from kernels.attention.packed_sequences import check_cu_seqlens
from kernels.instruments import cpu
from kernels.instruments.question import (
    Kind,
    Moments,
    Question,
    RowStatistics,
    check_chosen_rows,
    check_kind,
)


@torch.no_grad()
def row_statistics(
    q: Tensor,
    k: Tensor,
    *,
    kind: Kind,
    alpha: float | Tensor = 1.0,
    beta: float | Tensor = 1.0,
    mix: float | Tensor = 0.5,
    cu_seqlens: Tensor | None = None,
    block_size: int = 64,
    num_sinks: int | tuple[int, int] = 0,
    q_map: Map | None = None,
    k_map: Map | None = None,
    rows: Tensor | None = None,
) -> RowStatistics:
    """Entropy, sum of squares and moments of log P of attention rows: time N x N, memory N.

    The attention's arguments are those of `kernels.attention`; a kind ignores what it does not
    need. `rows` are packed rows in ascending order, all by default. The result is float64 on a CPU
    and float32 on a GPU.
    """
    form = arguments.check_rows(q=q, k=k)
    packed = check_cu_seqlens(cu_seqlens, q)
    has_channels = check_kind(kind) != "softmax"
    scaled_q = scaled_k = log_mass = None
    if has_channels:
        alphas = arguments.check_scale("alpha", alpha, form, packed.count)
        betas = arguments.check_scale("beta", beta, form, packed.count)
        owners = _owners(packed.host_bounds()).to(q.device)
        scaled_q = alphas[owners].unsqueeze(-1) * _mapped(
            q, arguments.check_map("q_map", q_map, form)
        )
        scaled_k = betas[owners].unsqueeze(-1) * _mapped(
            k, arguments.check_map("k_map", k_map, form)
        )
        log_mass = lln_state(scaled_k, scaled_k, beta=1.0, cu_seqlens=packed.cu_seqlens).log_mass
    question = Question(
        kind=kind,
        q=q,
        k=k,
        scaled_q=scaled_q,
        scaled_k=scaled_k,
        log_mass=log_mass,
        mix=arguments.check_mix(mix, form).expand(q.shape[:2]) if kind == "lln_diag" else None,
        packed=packed,
        block_size=arguments.check_block_size(block_size),
        sinks=arguments.check_sinks(num_sinks),
        rows=check_chosen_rows(rows, q.shape[0]),
    )
    if custom_op.runs_in_triton(q):
        # Imported on first use, here and below: a machine without a GPU has no Triton.
        from kernels.instruments.gpu import row_statistics as gpu

        return gpu.row_statistics(question)
    return cpu.row_statistics(question)


@torch.no_grad()
def moments(x: Tensor, cu_seqlens: Tensor | None = None) -> Moments:
    """Mean, variance and Gram matrix of each sequence and head; float64 on every device."""
    arguments.check_rows(x=x)
    packed = check_cu_seqlens(cu_seqlens, x)
    if custom_op.runs_in_triton(x):
        from kernels.instruments.gpu import moments as gpu

        return gpu.moments(x, packed)
    return cpu.moments(x, packed)


def _owners(bounds: tuple[int, ...]) -> Tensor:
    lengths = torch.tensor(bounds).diff()
    return torch.arange(len(lengths)).repeat_interleave(lengths)


def _mapped(rows: Tensor, affine: AffineMap | None) -> Tensor:
    wide = rows.to(arguments.accumulation_dtype(rows))
    if affine is None:
        return wide
    if affine.weight is not None:
        wide = torch.einsum("thc,hcd->thd", wide, affine.weight)
    return wide + affine.bias
