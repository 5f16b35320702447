"""What every launch needs: operands as the kernels want them, the device, the precision."""

from __future__ import annotations

import contextlib
from typing import Any, TypeAlias

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor
from triton.errors import TritonError  # type: ignore[import-untyped]

LAUNCH_ERRORS: tuple[type[Exception], ...] = (RuntimeError, TritonError)
"""What comes of a launch that the device cannot take."""

Map: TypeAlias = tuple[Tensor | None, Tensor]  # weight (None is the identity) and bias


def precision(dtype: torch.dtype) -> dict[str, Any]:
    return {
        # Three tf32 products are as exact as one float32 product and run on tensor cores; "ieee"
        # leaves them, keeps whole operands in registers and spills. 16-bit rows ignore this.
        "PRECISION": "tf32x3",
        # A 16-bit number is exact in tf32, whose rounding of the weight is below the rows' own.
        "MAP_PRECISION": "tf32x3" if dtype == torch.float32 else "tf32",
        # Triton's interpreter cannot multiply bfloat16.
        "UPCAST": triton.knobs.runtime.interpret and dtype == torch.bfloat16,
    }


def launch(
    kernel: Any,
    num_programs: int,
    *operands: object,
    **constants: object,
) -> None:
    if num_programs:
        kernel[(num_programs,)](*operands, **constants)


def device_of(x: Tensor) -> contextlib.AbstractContextManager[object]:
    """Triton launches on the current device, which need not be the tensors' own."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()


def unit_stride(x: Tensor) -> Tensor:
    """Rows and heads may lie anywhere (as slices of one fused projection do), channels may not."""
    return x if x.stride(-1) == 1 else x.contiguous()


def map_flags(affine: Map | None) -> dict[str, bool]:
    return {
        "weight": affine is not None and affine[0] is not None,
        "bias": affine is not None,
    }


def map_operands(affine: Map | None, absent: Tensor) -> tuple[Tensor, Tensor]:
    if affine is None:
        return absent, absent
    weight, bias = affine
    return absent if weight is None else weight.contiguous(), bias.contiguous()


def row_strides(x: Tensor | None) -> tuple[int, int]:
    """Strides of an [n, H] operand; one without rows is the same for all."""
    if x is None:
        return 0, 0
    return (x.stride(0), x.stride(1)) if x.dim() == 2 else (0, x.stride(0))
