"""The forward's launches for one form of call, prepared with all that no batch changes."""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernels.attention.gpu import constants as compiled_for
from kernels.attention.gpu import tiles
from kernels.attention.gpu.constants import Constants
from kernels.attention.gpu.forward_merge import merge_groups_kernel, merge_pieces_kernel
from kernels.attention.gpu.forward_output import lln_diag_kernel
from kernels.attention.gpu.forward_short import short_sequences_kernel
from kernels.attention.gpu.forward_state import lln_state_kernel
from kernels.attention.gpu.launch import (
    Arguments,
    Branches,
    sink_arguments,
)
from kernels.attention.gpu.prepared import Prepared
from kernels.attention.gpu.softmax import softmax_kernel
from kernels.attention.gpu.tiles import Span, query_span

LOG2_E = 1 / math.log(2)
NOT_SHORT = -1
"""As the length up to which sequences are short: none is."""
KEPT_FORMS = 256
"""A model has a few for each kind of its layers."""

Strides = tuple[int, ...]


class Form(NamedTuple):
    """What launches depend on besides lengths, batches and addresses."""

    device: torch.device
    dtype: torch.dtype
    num_heads: int
    head_dim: int
    q: Strides | None  # of tokens, heads and channels; None where there are none
    k: Strides | None
    v: Strides | None
    out: Strides | None
    alpha: Strides | None  # of sequences and heads, where they differ in it; None without LLN
    beta: Strides | None
    mix: Strides | None  # of heads, or of tokens and heads
    block_size: int | None
    num_sinks: tuple[int, int]
    num_outside: int  # sinks that are not among the rows
    q_weight: bool
    q_bias: bool
    k_weight: bool
    k_bias: bool
    state: torch.dtype | None  # of kappa V; None without LLN
    short: int  # sequences of at most this many tokens take a launch of their own
    gate: bool
    mix_scale: Strides | None  # of sequences, where they differ in it


def launches_for(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor | None,
    out: Tensor | None,
    branches: Branches,
    *,
    state: torch.dtype | None = None,
    short: int = NOT_SHORT,
) -> FormLaunches:
    rows = k if q is None else q
    assert rows is not None, "there are queries or keys"
    _, num_heads, head_dim = rows.shape
    _, alpha, beta, mix, gate, mix_scale, block_size, num_sinks, q_map, k_map, outside, _ = branches
    return launches_of(
        rows.device,
        rows.dtype,
        num_heads,
        head_dim,
        None if q is None else q.stride(),
        None if k is None else k.stride(),
        None if v is None else v.stride(),
        None if out is None else out.stride(),
        None if alpha is None else alpha.stride(),
        None if beta is None else beta.stride(),
        None if mix is None else mix.stride(),
        block_size,
        num_sinks,
        0 if outside is None else len(outside[0]),
        q_map is not None and q_map[0] is not None,
        q_map is not None,
        k_map is not None and k_map[0] is not None,
        k_map is not None,
        state,
        short,
        gate is not None,
        None if mix_scale is None else mix_scale.stride(),
    )


@lru_cache(maxsize=KEPT_FORMS)
def launches_of(*form: Any) -> FormLaunches:
    """The launches of a form, given by its fields: a known form is not made again."""
    return FormLaunches(Form(*form))


compiled_for.KEPT.append(launches_of)


class FormLaunches:
    """Each launch is prepared when it is first asked for."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self._family = tiles.family_of(form.device)
        self._q_map = {"weight": form.q_weight, "bias": form.q_bias}
        self._k_map = {"weight": form.k_weight, "bias": form.k_bias}
        self._scale = LOG2_E / math.sqrt(form.head_dim)

    @cached_property
    def _state_constants(self) -> Constants:
        form = self.form
        return compiled_for.state_constants(
            form.head_dim, form.dtype, family=self._family, **self._k_map
        )

    @cached_property
    def piece(self) -> int:
        """Tokens of a sequence that one program sums."""
        return int(self._state_constants["PIECE"])

    @cached_property
    def state_parts(self) -> int:
        """Programs that share the channels of a piece."""
        return _parts(self._state_constants)

    @cached_property
    def state(self) -> Prepared:
        form = self.form
        return Prepared(
            lln_state_kernel,
            **_row_strides(k=form.k, v=form.v),
            **_scale_strides(beta=form.beta),
            num_heads=form.num_heads,
            short=form.short,
            **self._state_constants,
        )

    @cached_property
    def _merge_constants(self) -> Constants:
        return compiled_for.merge_constants(self.form.head_dim, self.piece)

    @cached_property
    def merge_parts(self) -> int:
        return _parts(self._merge_constants)

    @cached_property
    def merge(self) -> Prepared:
        return Prepared(merge_pieces_kernel, num_heads=self.form.num_heads, **self._merge_constants)

    @cached_property
    def _group_constants(self) -> Constants:
        return compiled_for.merge_groups_constants(self.form.head_dim, self.piece)

    @cached_property
    def grouped_from(self) -> int:
        """Sequences of more tokens have groups of pieces."""
        return self.piece * int(self._group_constants["ONE_LEVEL"])

    @cached_property
    def group_span(self) -> int:
        """Tokens of the smallest group."""
        return int(self._group_constants["SPAN"])

    @cached_property
    def merge_groups(self) -> Prepared:
        return Prepared(merge_groups_kernel, num_heads=self.form.num_heads, **self._group_constants)

    @cached_property
    def _output_constants(self) -> Constants:
        form = self.form
        return compiled_for.output_constants(
            *(form.head_dim, form.dtype),
            block_size=form.block_size,
            lln=form.alpha is not None,
            sinks=any(form.num_sinks),
            outside=form.num_outside > 0,
            family=self._family,
            gate=form.gate,
            mix_scale=form.mix_scale is not None,
            **self._q_map,
        )

    @cached_property
    def output_span(self) -> Span:
        return _span(self.form, self._output_constants)

    @cached_property
    def output(self) -> Prepared:
        form = self.form
        return Prepared(
            lln_diag_kernel,
            **_row_strides(q=form.q, k=form.k, v=form.v),
            **_out_stride(form),
            **_scale_strides(alpha=form.alpha),
            **_mix_strides(form),
            num_heads=form.num_heads,
            **sink_arguments(form.num_sinks),
            num_outside=form.num_outside,
            short=form.short,
            scale=self._scale,
            **self._output_constants,
        )

    @cached_property
    def short_sequences(self) -> Prepared:
        form = self.form
        constants = compiled_for.short_constants(
            *(form.head_dim, form.dtype),
            block_size=form.block_size,
            sinks=any(form.num_sinks),
            q_map=self._q_map,
            k_map=self._k_map,
            gate=form.gate,
            mix_scale=form.mix_scale is not None,
        )
        return Prepared(
            short_sequences_kernel,
            **_row_strides(q=form.q, k=form.k, v=form.v),
            **_out_stride(form),
            **_scale_strides(alpha=form.alpha, beta=form.beta),
            **_mix_strides(form),
            num_heads=form.num_heads,
            **sink_arguments(form.num_sinks),
            short=form.short,
            scale=self._scale,
            **constants,
        )

    @cached_property
    def _softmax_constants(self) -> Constants:
        form = self.form
        return compiled_for.softmax_constants(form.head_dim, form.dtype, family=self._family)

    @cached_property
    def softmax_span(self) -> Span:
        """A tile of queries."""
        rows = int(self._softmax_constants["BM"])
        return Span(rows, 1, rows)

    @cached_property
    def softmax(self) -> Prepared:
        form = self.form
        return Prepared(
            softmax_kernel,
            **_row_strides(q=form.q, k=form.k, v=form.v),
            **_out_stride(form),
            scale=self._scale,
            **self._softmax_constants,
        )


def _parts(constants: Constants) -> int:
    return -(-int(constants["D"]) // int(constants["BC"]))


def _span(form: Form, constants: Constants) -> Span:
    return query_span(form.block_size or constants["BM"], constants["BM"])


def _row_strides(**rows: Strides | None) -> Arguments:
    """Strides of [T, H, D] operands, which may lie anywhere but for their channels."""
    found: Arguments = {}
    for name, strides in rows.items():
        stride_t, stride_h = (0, 0) if strides is None else strides[:2]
        found |= {f"stride_{name}t": stride_t, f"stride_{name}h": stride_h}
    return found


def _out_stride(form: Form) -> Arguments:
    assert form.out is not None, "there are answers"
    return {"stride_ot": form.out[0]}


def _scale_strides(**scales: Strides | None) -> Arguments:
    """Strides of operands [B, H], or [H] or [] where sequences, or heads as well, share a
    number."""
    found: Arguments = {}
    for name, strides in scales.items():
        stride_b, stride_h = (0, 0, *(strides or ()))[-2:]
        found |= {f"stride_{name}_b": stride_b, f"stride_{name}_h": stride_h}
    return found


def _mix_strides(form: Form) -> Arguments:
    """A mix of each head [H] is the same for all rows, one by token [T, H] is not."""
    stride_t, stride_h = (0, 0, *(form.mix or ()))[-2:]
    (stride_b,) = (0, *(form.mix_scale or ()))[-1:]
    return {"stride_mix_t": stride_t, "stride_mix_h": stride_h, "stride_mix_b": stride_b}
