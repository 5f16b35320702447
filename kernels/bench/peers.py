"""What else is installed that does attention in its own way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.attention import softmax_attention
from kernels.bench import formula
from kernels.bench.shapes import Inputs

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
    """Linear attention of one sequence, which does less: no block softmax, features given."""
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
    """torch.compile of the plain formula, for this shape alone."""
    compiled: Any = torch.compile(formula.lln_diag, dynamic=False)
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
