"""Other implementations of attention, where they are installed, and LLN+Diag in plain torch.

The plain formula is what torch.compile gets, and what our rounding error is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.attention import softmax_attention
from kernels.bench.measure import Inputs

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

BACKENDS = {
    "SDPA flash": SDPBackend.FLASH_ATTENTION,
    "SDPA cuDNN": SDPBackend.CUDNN_ATTENTION,
    "SDPA efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def softmax_peers(device: torch.device) -> Iterator[tuple[str, Attend]]:
    """Exact attention of one sequence, [T, H, D]."""
    if device.type == "cuda":
        yield "softmax_attention", softmax_attention
        for name, backend in BACKENDS.items():
            yield name, partial(_sdpa, backend)
        flash = _optional("flash_attn", "flash_attn_func")
        if flash is not None:
            yield "flash-attn", lambda q, k, v: flash(q[None], k[None], v[None])[0]
    else:
        yield "SDPA", partial(_sdpa, None)


def linear_peers() -> Iterator[tuple[str, Attend]]:
    """Linear attention of one sequence. It does less: no block softmax, and features are given."""
    bidirectional = _optional("flash_bla.ops.linear_attn.fused", "linear_attention")
    if bidirectional is not None:
        yield "flash-bidirectional-linear-attention", partial(_heads_first, bidirectional)
    causal = _optional("fla.ops.linear_attn", "chunk_linear_attn")
    if causal is not None:
        yield (
            "flash-linear-attention (causal)",
            lambda q, k, v: causal(q[None], k[None], v[None])[0][0],
        )


def compiled_formula(inputs: Inputs) -> Attend:
    """torch.compile of the plain formula, compiled for this one shape."""
    compiled: Any = torch.compile(lln_diag, dynamic=False)
    return partial(compiled, **inputs.scales, mix=inputs.mix, block_size=inputs.shape.block_size)


def _sdpa(backend: SDPBackend | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if backend is None:
        return _heads_first(F.scaled_dot_product_attention, q, k, v)
    with sdpa_kernel(backend):
        return _heads_first(F.scaled_dot_product_attention, q, k, v)


def _heads_first(attend: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    found: Tensor = attend(*(x.transpose(0, 1).unsqueeze(0) for x in (q, k, v)))
    return found.squeeze(0).transpose(0, 1)


def _optional(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return None


def lln_diag(
    q: Tensor, k: Tensor, v: Tensor, *, alpha: Tensor, beta: Tensor, mix: Tensor, block_size: int
) -> Tensor:
    """One sequence, [T, H, D]; the last block may be short."""
    score = beta.to(q.dtype).unsqueeze(-1) * k
    pi = (alpha.to(q.dtype).unsqueeze(-1) * q + score.logsumexp(0)).softmax(-1)
    value = torch.einsum("jhc,jhd->hcd", score.softmax(0), v)
    lln = torch.einsum("ihc,hcd->ihd", pi, value)
    share = mix.to(q.dtype).unsqueeze(-1)
    return share * lln + (1 - share) * diag(q, k, v, block_size)


def diag(q: Tensor, k: Tensor, v: Tensor, block_size: int) -> Tensor:
    rest = -len(q) % block_size
    shape = -1, block_size, *q.shape[1:]
    blocks = (F.pad(x, (0, 0, 0, 0, 0, rest)).reshape(shape) for x in (q, k, v))
    block_q, block_k, block_v = blocks  # [n, b, H, D]
    scores = torch.einsum("nihd,njhd->nhij", block_q, block_k) / math.sqrt(q.shape[-1])
    position = torch.arange(len(q) + rest, device=q.device).reshape(-1, block_size)
    hidden = (position >= len(q))[:, None, None, :]
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    # A block is never all padding, so no row is without keys.
    return torch.einsum("nhij,njhd->nihd", weights, block_v).flatten(0, 1)[: len(q)]
