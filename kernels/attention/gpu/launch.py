"""What every launch shares: arguments by the kernels' own names, and the device.

Each helper turns tensors into the keyword arguments that a kernel takes for them: a pointer and
its strides. Nothing here waits for the device.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.errors import TritonError  # type: ignore[import-untyped]

from kernels.attention.arguments import Map
from kernels.attention.gpu.tiles import Span
from kernels.attention.packed_sequences import PackedSequences
from kernels.attention.state import LLNState

LAUNCH_ERRORS: tuple[type[Exception], ...] = (RuntimeError, TritonError)
"""What a launch raises that the device cannot run."""

MOST_ON_AXIS = 65_535
"""Programs on the second and third axis of a launch, at most."""

Arguments = dict[str, Any]
Grid = tuple[int, int, int]
ABSENT = (None, None)
"""A map, a state or sinks outside that a call does not have, as a kernel's arguments."""
_AS_IT_IS = contextlib.nullcontext()


class Branches(NamedTuple):
    """What a call asks for besides its rows. A branch without its arguments is not computed."""

    cu_seqlens: Tensor  # int32 [B + 1]
    alpha: Tensor | None = None  # float32 [B, H], [H] or []; None without LLN
    beta: Tensor | None = None  # the same
    mix: Tensor | None = None  # float32 [H] or [T, H]; None unless there are both branches
    gate: Tensor | None = None  # float32 [H, D]: then each token's mix is of q, and `mix` its bias
    mix_scale: Tensor | None = None  # float32 [] or [B], a factor of the mix
    block_size: int | None = None  # None without Diag; without LLN too: whole sequences
    num_sinks: tuple[int, int] = (0, 0)
    q_map: Map | None = None
    k_map: Map | None = None
    outside: tuple[Tensor, Tensor] | None = None
    """Keys and values [n, H, D] of a tile's sinks that are not among its rows."""
    packed: PackedSequences | None = None  # the bounds, where the host knows them

    @property
    def num_sequences(self) -> int:
        return self.cu_seqlens.numel() - 1


def programs_by_head(num_slots: int, num_heads: int) -> Grid:
    """Heads vary fastest, since neighbours read the same rows; then slots, on two axes.

    An axis saves each program a division.
    """
    return num_heads, min(num_slots, MOST_ON_AXIS), -(-num_slots // MOST_ON_AXIS)


def launch(kernel: Any, programs: int | Grid, **arguments: object) -> Any:
    """Runs a kernel on the device of its tensors. Returns what was compiled for it, if anything.

    None is a tensor that this build of the kernel does not read. Triton wants a pointer for it
    all the same, and gets that of the first tensor.
    """
    grid = as_grid(programs)
    if not all(grid):
        return None
    first = next(x for x in arguments.values() if isinstance(x, Tensor))
    given = {name: first if x is None else x for name, x in arguments.items()}
    with on_device_of(first):
        return kernel[grid](**given)


def as_grid(programs: int | Grid) -> Grid:
    return (programs, 1, 1) if isinstance(programs, int) else programs


def on_device_of(rows: Tensor) -> contextlib.AbstractContextManager[object]:
    """Makes the rows' device the current one, where it is not."""
    if not rows.is_cuda or torch.cuda.current_device() == rows.get_device():
        return _AS_IT_IS
    return torch.cuda.device(rows.device)


def is_captured(rows: Tensor) -> bool:
    """Whether a CUDA graph records this launch, to replay it with other values in its tensors."""
    return rows.is_cuda and torch.cuda.is_current_stream_capturing()


def unit_stride(x: Tensor) -> Tensor:
    """Rows and heads may lie anywhere (as slices of one fused projection do), channels may not."""
    return x if x.stride(-1) == 1 else x.contiguous()


def row_arguments(**rows: Tensor | None) -> Arguments:
    """Arguments of [T, H, D] operands: `q=x` becomes p_q, stride_qt and stride_qh."""
    found: Arguments = {}
    for name, x in rows.items():
        stride_t, stride_h = (0, 0) if x is None else x.stride()[:2]
        found |= {f"p_{name}": x, f"stride_{name}t": stride_t, f"stride_{name}h": stride_h}
    return found


def scale_arguments(**scales: Tensor | None) -> Arguments:
    """Arguments of [B, H] operands: `alpha=x` becomes p_alpha, stride_alpha_b and
    stride_alpha_h."""
    found: Arguments = {}
    for name, x in scales.items():
        stride_b, stride_h = (0, 0) if x is None else x.stride()
        found |= {f"p_{name}": x, f"stride_{name}_b": stride_b, f"stride_{name}_h": stride_h}
    return found


def mix_arguments(mix: Tensor | None) -> Arguments:
    """A mix of each head [H] is the same for all rows; a gate [T, H] is not."""
    stride_t = 0 if mix is None or mix.dim() == 1 else mix.stride(0)
    return {
        "p_mix": mix,
        "stride_mix_t": stride_t,
        "stride_mix_h": 0 if mix is None else mix.stride(-1),
    }


def map_arguments(affine: Map | None, prefix: str = "") -> Arguments:
    weight, bias = (None, None) if affine is None else affine
    return {
        f"p_{prefix}weight": None if weight is None else weight.contiguous(),
        f"p_{prefix}bias": None if bias is None else bias.contiguous(),
    }


def map_flags(affine: Map | None) -> dict[str, bool]:
    return {
        "weight": affine is not None and affine[0] is not None,
        "bias": affine is not None,
    }


def state_arguments(state: LLNState | None) -> Arguments:
    return {
        "p_log_mass": None if state is None else state.log_mass.contiguous(),
        "p_value": None if state is None else state.value.contiguous(),
    }


def span_arguments(span: Span) -> Arguments:
    return {
        "span": span.tokens,
        "tiles_per_span": span.tiles,
        "rows_per_tile": span.rows,
    }


def sink_arguments(num_sinks: tuple[int, int]) -> Arguments:
    first, last = num_sinks
    return {"first_sinks": first, "last_sinks": last}
