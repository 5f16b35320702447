"""The launches that are counted: those that a server makes, in bfloat16, and the usual benchmarks'.

The models that ship have heads of 32 numbers with maps, a gate and a sink at either end, in blocks
of 512 tokens, and of 256 in long texts. Heads of 64 and 128 are those of larger models. A document
has so many tokens that what happens once a document does not count; a short text has 200. Either is
alone in its batch: in others every program also reads which rows are its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kernels.attention.gpu import constants as compiled_for
from kernels.attention.gpu.backward_rows import rows_gradient_kernel
from kernels.attention.gpu.backward_state import state_gradient_kernel
from kernels.attention.gpu.backward_sums import diag_rows_kernel
from kernels.attention.gpu.constants import Constants
from kernels.attention.gpu.forward_merge import merge_groups_kernel, merge_pieces_kernel
from kernels.attention.gpu.forward_output import lln_diag_kernel
from kernels.attention.gpu.forward_short import short_sequences_kernel
from kernels.attention.gpu.forward_state import lln_state_kernel
from kernels.attention.gpu.groups import group_pieces
from kernels.attention.gpu.tiles import query_span
from kernels.instructions.sass import Body

DTYPE = torch.bfloat16
FAMILY = "hopper"
TOKENS = 131072  # of the document
SHORT_TOKENS = 200  # of the short text
ROW_BYTES = DTYPE.itemsize
FLOAT_BYTES = torch.float32.itemsize
MIX_BYTES = FLOAT_BYTES  # a token and head
SINKS = 2


@dataclass(frozen=True)
class Form:
    """What a model asks of attention."""

    head_dim: int
    block_size: int
    maps: bool
    sinks: bool

    @property
    def name(self) -> str:
        served = ", maps, sinks, gate" if self.maps else ""
        return f"D {self.head_dim}{served}, blocks of {self.block_size}"

    @property
    def flags(self) -> dict[str, Any]:
        return {"weight": self.maps, "bias": self.maps}

    @property
    def mix_flags(self) -> dict[str, Any]:
        return {"gate": self.maps, "mix_scale": self.maps}

    @property
    def row(self) -> int:
        """Bytes of one token's row in one tensor and head."""
        return self.head_dim * ROW_BYTES

    @property
    def mix(self) -> int:
        """Bytes of a token's mix, which the backward is given."""
        return MIX_BYTES if self.maps else 0


SERVED = (Form(32, 512, maps=True, sinks=True), Form(32, 256, maps=True, sinks=True))
PLAIN = tuple(
    Form(head_dim, block_size, maps=False, sinks=False)
    for head_dim, block_size in ((32, 64), (64, 64), (64, 128), (128, 64), (128, 128))
)
FORMS = (*SERVED, *PLAIN)


MASKED = 'b_score = tl.where(m_visible, b_score, float("-inf"))'
SCORES_FOLLOWED = "b_shrink = tl.exp2(b_peak - b_new_peak)"
# Of a piece that is not the whole sequence, and of a block that is.
ONE_PIECE = Body("b_divisor = tl.where(length > 0, b_mass, 1.0)")
SHORT_STEP = Body('b_score = tl.where(m_t[:, None], b_score, float("-inf"))')
LAST_STEP = Body(MASKED, "if num_whole < num_keys:")
MASKED_IN_BLOCK = 'b_score = tl.where(m_n[None, :], b_score, float("-inf"))'
LAST_IN_BLOCK = Body(MASKED_IN_BLOCK, "if num_whole < num_keys:")
FIRST_ROUND = Body("b_peak = tl.max(b_score, 1) * scale", "if i_n == 0:")
SECOND_TIME = Body(SCORES_FOLLOWED, "if overflows:")
SHORT_BLOCK = Body(MASKED, "elif num_keys < BN:")


@dataclass(frozen=True)
class Launch:
    """One kernel as it is launched, and how often its loops go round."""

    part: str  # of an operation
    form: str
    kernel: Any
    constants: Constants
    tokens: float  # that a program answers for, of one head
    bytes: float  # that must move, a token and head
    rounds: Mapping[str, float] = field(default_factory=dict)  # by the loop's variable
    skipped: tuple[Body, ...] = ()
    once: tuple[Body, ...] = ()  # in one round of their loop
    scores: int = 0  # that a token has in all softmaxes: so many exponentials at least

    @property
    def name(self) -> str:
        return f"{self.part}, {self.form}"


def launches() -> Iterator[Launch]:
    seen = set()
    for form in FORMS:
        for launch in (*_forward(form), *_backward(form)):
            if launch.name not in seen:
                seen.add(launch.name)
                yield launch
    yield from map(_tile, SERVED)
    yield _short(Form(64, 64, maps=False, sinks=False))
    yield _diag_alone(SERVED[0])


def _forward(form: Form) -> Iterator[Launch]:
    yield _state(form)
    yield from _merge(form)
    yield _output(form)


def _state_form(form: Form) -> str:
    return f"D {form.head_dim}" + (", maps" if form.maps else "")


def _state(form: Form) -> Launch:
    constants = compiled_for.state_constants(form.head_dim, DTYPE, family=FAMILY, **form.flags)
    piece, parts = constants["PIECE"], _parts(form.head_dim, constants["BC"])
    return Launch(
        *("state", _state_form(form), lln_state_kernel, constants),
        tokens=piece / parts,
        bytes=2 * form.row + _piece_bytes(form.head_dim) / piece,
        rounds={"i_b": 0, "i_t": _parts(piece, constants["BT"]), **_map_rounds(form)},
        skipped=(ONE_PIECE, SHORT_STEP),
        scores=form.head_dim,
    )


def _merge(form: Form) -> Iterator[Launch]:
    """Of each group first, then of the groups. Programs without a group end at once."""
    piece = compiled_for.state_constants(form.head_dim, DTYPE, family=FAMILY, **form.flags)["PIECE"]
    of_groups = compiled_for.merge_groups_constants(form.head_dim, piece)
    constants = compiled_for.merge_constants(form.head_dim, piece)
    group = group_pieces(TOKENS // piece) * piece
    parts = _parts(form.head_dim, constants["BC"])
    state = _piece_bytes(form.head_dim)
    yield Launch(
        *("merge of groups", f"D {form.head_dim}", merge_groups_kernel, of_groups),
        tokens=group / parts,
        bytes=state / piece + state / group,
        rounds={"i_b": 0, "i_part": group / piece},
    )
    yield Launch(
        *("merge", f"D {form.head_dim}", merge_pieces_kernel, constants),
        tokens=TOKENS / parts,
        bytes=state / group,
        rounds={"i_part": TOKENS / group},
    )


def _output(form: Form) -> Launch:
    constants = compiled_for.output_constants(
        *(form.head_dim, DTYPE),
        block_size=form.block_size,
        lln=True,
        sinks=form.sinks,
        family=FAMILY,
        **form.flags,
        **form.mix_flags,
    )
    span = query_span(form.block_size, constants["BM"])
    return Launch(
        *("output", form.name, lln_diag_kernel, constants),
        tokens=span.tokens / span.tiles,
        bytes=4 * form.row,
        rounds=_output_rounds(form, constants, form.block_size),
        skipped=_not_entered(constants),
        once=_entered_once(constants),
        scores=form.head_dim + form.block_size,
    )


def _tile(form: Form) -> Launch:
    """A tile within a text that is read tile by tile: all sinks are outside of it."""
    constants = compiled_for.output_constants(
        *(form.head_dim, DTYPE),
        block_size=form.block_size,
        lln=True,
        sinks=False,
        outside=True,
        family=FAMILY,
        **form.flags,
        **form.mix_flags,
    )
    return replace(_output(form), part="tile", constants=constants)


def _not_entered(constants: Constants) -> tuple[Body, ...]:
    """Of the output pass, where blocks are whole and no score is far above the others."""
    if constants["ONE_STEP"]:
        return (SHORT_BLOCK,)
    return (LAST_IN_BLOCK, SECOND_TIME) if constants["LIMIT"] else (LAST_STEP,)


def _entered_once(constants: Constants) -> tuple[Body, ...]:
    return () if constants["ONE_STEP"] or not constants["LIMIT"] else (FIRST_ROUND,)


def _output_rounds(form: Form, constants: Constants, keys: int) -> dict[str, float]:
    return {
        "i_b": 0,
        "i_n": _parts(keys, constants["BN"]),
        # Where a block takes several steps, the first sinks are read outside of the loop.
        "i_s": _parts(SINKS, constants["BS"]) if constants["ONE_STEP"] else 0,
        "i_o": _parts(SINKS, constants["BS"]),
        "i_c": _parts(form.head_dim, constants["BC"]),
        **_map_rounds(form),
    }


def _short(form: Form) -> Launch:
    constants = compiled_for.short_constants(
        *(form.head_dim, DTYPE),
        block_size=form.block_size,
        sinks=form.sinks,
        q_map=form.flags,
        k_map=form.flags,
        **form.mix_flags,
    )
    span = query_span(form.block_size, constants["BM"])
    return Launch(
        *("short text", form.name, short_sequences_kernel, constants),
        tokens=SHORT_TOKENS,
        bytes=4 * form.row,
        rounds={
            **_output_rounds(form, constants, form.block_size),
            "i_c": _parts(form.head_dim, constants["STATE_BC"]),
            "i_t": SHORT_TOKENS // constants["BT"],  # the last step counts besides
            "i_span": _parts(SHORT_TOKENS, span.tokens),
            "i_tile": span.tiles,
        },
        skipped=_not_entered(constants),
        once=_entered_once(constants),
    )


def _diag_alone(form: Form) -> Launch:
    """A text of one block: softmax alone, without maps, gate or sinks outside the block."""
    constants = compiled_for.output_constants(
        *(form.head_dim, DTYPE),
        block_size=form.block_size,
        lln=False,
        sinks=True,
        weight=False,
        bias=False,
        family=FAMILY,
    )
    plain = Form(form.head_dim, form.block_size, maps=False, sinks=True)
    tiles = _parts(SHORT_TOKENS, query_span(form.block_size, constants["BM"]).rows)
    whole_steps = SHORT_TOKENS // constants["BN"]  # the last one counts besides
    return Launch(
        *("short text, Diag alone", plain.name, lln_diag_kernel, constants),
        tokens=SHORT_TOKENS / tiles,
        bytes=4 * form.row,
        rounds=_output_rounds(plain, constants, whole_steps * constants["BN"]),
        skipped=(SECOND_TIME,),
        once=(FIRST_ROUND,),
    )


def _backward(form: Form) -> Iterator[Launch]:
    yield _state_gradient(form)
    rows = compiled_for.rows_gradient_constants(
        *(form.head_dim, DTYPE),
        block_size=form.block_size,
        lln=True,
        sinks=form.sinks,
        q_map=form.flags,
        k_map=form.flags,
        family=FAMILY,
    )
    span = query_span(form.block_size, rows["BM"])
    tokens = span.tokens / span.tiles
    steps = _parts(form.block_size, rows["BN"])
    rounds = {
        "i_b": 0,
        "i_n": steps,
        "i_rest": 0 if rows["BD"] <= 64 else steps,
        "i_s": _parts(SINKS, rows["BS"]),
        "i_c": _parts(form.head_dim, rows["BC"]),
        "i_k": _parts(form.head_dim, rows["BK"]),
    }
    if not rows["ONE_STEP"]:
        yield Launch(
            *("rows' sums", form.name, diag_rows_kernel, compiled_for.diag_rows_constants(rows)),
            tokens=tokens,
            bytes=4 * form.row + form.mix + 3 * FLOAT_BYTES,
            rounds=rounds,
            skipped=(SECOND_TIME,),
        )
    yield Launch(
        *("rows' gradient", form.name, rows_gradient_kernel, rows),
        tokens=tokens,
        bytes=7 * form.row + 2 * form.mix,
        rounds=rounds,
    )


def _state_gradient(form: Form) -> Launch:
    constants = compiled_for.state_gradient_constants(
        form.head_dim, DTYPE, mix=True, family=FAMILY, **form.flags
    )
    piece, parts = constants["PIECE"], _parts(form.head_dim, constants["BC"])
    return Launch(
        *("state's gradient", _state_form(form), state_gradient_kernel, constants),
        tokens=piece / parts,
        bytes=2 * form.row + form.mix + _piece_bytes(form.head_dim) / piece,
        rounds={
            "i_b": 0,
            "i_t": _parts(piece, constants["BT"]),
            "i_c": _parts(form.head_dim, constants["BC"]),
            "i_k": _parts(form.head_dim, constants["BK"]),
        },
        scores=form.head_dim,
    )


def _map_rounds(form: Form) -> dict[str, float]:
    return {"i_k": _parts(form.head_dim, min(form.head_dim, 64))}


def _piece_bytes(head_dim: int) -> int:
    """A state of one piece and head, in float32, with its peaks and masses."""
    return (head_dim + 2) * head_dim * FLOAT_BYTES


def _parts(length: float, size: int) -> int:
    return math.ceil(length / size)
