"""Checks callers' arguments once and brings them into one form for every implementation."""

from __future__ import annotations

import math
from typing import NamedTuple, Self, TypeAlias

import torch
from torch import Tensor

from kernels.attention.state import LLNState

MIN_HEAD_DIM = 16
MAX_HEAD_DIM = 256
BLOCK_SIZE_MULTIPLE = 16
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class ArgumentError(ValueError):
    """An argument cannot be used; the message names it and its value."""


Map: TypeAlias = tuple[Tensor | None, Tensor]
"""One affine map a head as callers give it: weight [H, D, D], None for the identity, and bias."""


class Sinks(NamedTuple):
    """How many tokens at either end of a sequence every block may also attend to."""

    first: int
    last: int


class Gate(NamedTuple):
    """Each token chooses its mix: sigmoid(weight . q + bias)."""

    weight: Tensor  # [H, D]
    bias: Tensor  # [H]


class AffineMap(NamedTuple):
    """One affine map a head, x W + b, for the LLN branch alone."""

    weight: Tensor | None  # [H, D, D]; None is the identity
    bias: Tensor  # [H, D]


class RowsForm(NamedTuple):
    """What the other arguments must agree with, asked of the rows once: torch takes its time."""

    num_rows: int
    num_heads: int
    head_dim: int
    device: torch.device
    wide_dtype: torch.dtype  # of sums and parameters

    @classmethod
    def of(cls, rows: Tensor) -> Self:
        num_rows, num_heads, head_dim = rows.shape
        return cls(num_rows, num_heads, head_dim, rows.device, accumulation_dtype(rows))


def check_rows(**tensors: Tensor) -> RowsForm:
    """q, k and v agree in shape, dtype and device, and all of these are supported."""
    (first_name, first), *others = tensors.items()
    shape, dtype, device = first.shape, first.dtype, first.device
    if len(shape) != 3:
        raise ArgumentError(f"{first_name} must be (T, H, D), got shape {tuple(shape)}")
    num_rows, num_heads, head_dim = shape
    if not MIN_HEAD_DIM <= head_dim <= MAX_HEAD_DIM:
        raise ArgumentError(
            f"head size must be {MIN_HEAD_DIM} to {MAX_HEAD_DIM}, got {head_dim} in {first_name}"
        )
    if num_heads < 1:
        raise ArgumentError(f"{first_name} has no heads, shape {tuple(shape)}")
    if dtype not in DTYPES:
        raise ArgumentError(f"{first_name} has unsupported dtype {dtype}")
    for name, other in others:
        if other.shape == shape and other.dtype is dtype and other.device == device:
            continue
        for what in ("shape", "dtype", "device"):
            mine, theirs = getattr(first, what), getattr(other, what)
            if mine != theirs:
                raise ArgumentError(
                    f"{first_name} and {name} differ in {what}: {_shown(mine)} and {_shown(theirs)}"
                )
    return RowsForm(num_rows, num_heads, head_dim, device, _wide(dtype))


def _shown(value: object) -> str:
    return str(tuple(value)) if isinstance(value, torch.Size) else str(value)


def check_scale(name: str, value: float | Tensor, rows: RowsForm, num_sequences: int) -> Tensor:
    """alpha or beta as (B, H) in the accumulation dtype."""
    scale = check_shared_scale(name, value, rows, num_sequences)
    return scale.expand(num_sequences, rows.num_heads)


def check_shared_scale(
    name: str, value: float | Tensor, rows: RowsForm, num_sequences: int
) -> Tensor:
    """The same, but one number for all, or (H,), where sequences share it."""
    scale = _finite_tensor(name, value, rows)
    shape = scale.shape
    if len(shape) > 2 or (shape and shape[-1] != rows.num_heads):
        raise ArgumentError(
            f"{name} must be a number, (H,) or (B, H) with H = {rows.num_heads}, "
            f"got shape {tuple(shape)}"
        )
    if len(shape) == 2 and shape[0] != num_sequences:
        raise ArgumentError(f"{name} has {shape[0]} rows for {num_sequences} sequences")
    return scale


def check_mix(value: float | Tensor, rows: RowsForm) -> Tensor:
    """mix as (H,), or (T, H) for one per token and head, in the accumulation dtype."""
    num_rows, num_heads, *_ = rows
    mix = _finite_tensor("mix", value, rows)
    if mix.dim() == 0:
        return mix.expand(num_heads)
    if mix.shape not in ((num_heads,), (num_rows, num_heads)):
        raise ArgumentError(
            f"mix must be a number, (H,) or (T, H) with T = {num_rows}, H = {num_heads}, "
            f"got shape {tuple(mix.shape)}"
        )
    return mix


def check_mix_or_gate(value: float | Tensor | Gate, rows: RowsForm) -> Tensor | Gate:
    """The same, or a gate in the accumulation dtype."""
    if not isinstance(value, Gate):
        return check_mix(value, rows)
    weight, bias = value
    shape = rows.num_heads, rows.head_dim
    _check_shape("mix's weight", weight, shape)
    _check_shape("mix's bias", bias, shape[:1])
    # A bias may be infinite: that is a mix of 0 or 1.
    return Gate(_finite_tensor("mix's weight", weight, rows), _converted(bias, rows))


def check_mix_scale(
    value: float | Tensor | None, rows: RowsForm, num_sequences: int
) -> Tensor | None:
    """mix_scale as a number or (B,), in the accumulation dtype."""
    if value is None:
        return None
    scale = _finite_tensor("mix_scale", value, rows)
    if scale.shape not in ((), (num_sequences,)):
        raise ArgumentError(
            f"mix_scale must be a number or (B,) with B = {num_sequences}, "
            f"got shape {tuple(scale.shape)}"
        )
    return scale


def check_block_size(size: int, name: str = "block_size") -> int:
    if size < BLOCK_SIZE_MULTIPLE or size % BLOCK_SIZE_MULTIPLE:
        raise ArgumentError(
            f"{name} must be a positive multiple of {BLOCK_SIZE_MULTIPLE}, got {size}"
        )
    return size


def check_sinks(num_sinks: int | tuple[int, int]) -> Sinks:
    first, last = (num_sinks, 0) if isinstance(num_sinks, int) else num_sinks
    if first < 0 or last < 0:
        raise ArgumentError(f"num_sinks must not be negative, got {num_sinks}")
    return Sinks(first, last)


def check_map(
    name: str, value: tuple[Tensor | None, Tensor] | None, rows: RowsForm
) -> AffineMap | None:
    if value is None:
        return None
    weight, bias = value
    shape = rows.num_heads, rows.head_dim, rows.head_dim
    bias = _part_of_map(f"{name}'s bias", bias, shape[:2], rows)
    if weight is not None:
        weight = _part_of_map(f"{name}'s weight", weight, shape, rows)
    return AffineMap(weight, bias)


def _part_of_map(name: str, value: Tensor, shape: tuple[int, ...], rows: RowsForm) -> Tensor:
    _check_shape(name, value, shape)
    if value.device != rows.device:
        raise ArgumentError(f"{name} is on {value.device}, the rows on {rows.device}")
    return value if value.dtype is rows.wide_dtype else value.to(rows.wide_dtype)


def _check_shape(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    if value.shape != shape:
        raise ArgumentError(f"{name} must be {shape}, got {tuple(value.shape)}")


def check_state(state: LLNState, rows: Tensor, num_sequences: int) -> None:
    _, num_heads, head_dim = rows.shape
    expected = (num_sequences, num_heads, head_dim)
    shapes = tuple(state.log_mass.shape), tuple(state.value.shape)
    if shapes != (expected, (*expected, head_dim)):
        raise ArgumentError(
            f"state must be {expected} and {(*expected, head_dim)} for these rows, "
            f"got {shapes[0]} and {shapes[1]}"
        )


def accumulation_dtype(rows: Tensor) -> torch.dtype:
    """Sums and states are float32 for every input dtype but float64, which keeps itself."""
    return _wide(rows.dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def check_finite(name: str, value: Tensor) -> None:
    """Only on the host: on a device it would wait, and a number that is not finite shows as NaN."""
    # One operation, since long texts come here tile by tile. A sum of finite numbers is finite.
    if value.device.type == "cpu" and not math.isfinite(value.detach().sum(dtype=torch.float64)):
        raise ArgumentError(f"{name} must be finite, got {value.detach().tolist()}")


def _finite_tensor(name: str, value: float | Tensor, rows: RowsForm) -> Tensor:
    # Tracing sees no values; the operator checks them when it runs.
    is_traced = torch.compiler.is_compiling()
    if isinstance(value, Tensor):
        if not is_traced:
            check_finite(name, value)
        return _converted(value, rows)
    if not is_traced and not math.isfinite(value):
        raise ArgumentError(f"{name} must be finite, got {value}")
    return torch.full((), value, device=rows.device, dtype=rows.wide_dtype)


def _converted(value: Tensor, rows: RowsForm) -> Tensor:
    """Calls torch only where there is something to convert."""
    if value.dtype is rows.wide_dtype and value.device == rows.device:
        return value
    return value.to(rows.device, rows.wide_dtype)
