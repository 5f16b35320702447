"""The launches of the forward, over a document, a tile of one, and a short text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kernels.attention.gpu import constants as compiled_for
from kernels.attention.gpu.constants import Constants
from kernels.attention.gpu.forward_merge import merge_groups_kernel, merge_pieces_kernel
from kernels.attention.gpu.forward_output import lln_diag_kernel
from kernels.attention.gpu.forward_short import short_sequences_kernel
from kernels.attention.gpu.forward_state import lln_state_kernel
from kernels.attention.gpu.groups import group_pieces
from kernels.attention.gpu.tiles import query_span
from kernels.instructions.bodies import (
    FIRST_ROUND,
    LAST_IN_BLOCK,
    LAST_STEP,
    ONE_PIECE,
    SECOND_TIME,
    SHORT_BLOCK,
    SHORT_STEP,
)
from kernels.instructions.forms import (
    DTYPE,
    FAMILY,
    SHORT_TOKENS,
    SINKS,
    TOKENS,
    Form,
    num_steps,
    piece_bytes,
)
from kernels.instructions.launch import Launch
from kernels.instructions.sass import Body


def forward(form: Form) -> Iterator[Launch]:
    yield _state(form)
    yield from _merge(form)
    yield _output(form)


def _state(form: Form) -> Launch:
    constants = compiled_for.state_constants(form.head_dim, DTYPE, family=FAMILY, **form.flags)
    piece, parts = constants["PIECE"], num_steps(form.head_dim, constants["BC"])
    return Launch(
        *("state", form.state_name, lln_state_kernel, constants),
        tokens=piece / parts,
        bytes=2 * form.row + piece_bytes(form.head_dim) / piece,
        rounds={"i_b": 0, "i_t": num_steps(piece, constants["BT"]), **form.map_rounds},
        skipped=(ONE_PIECE, SHORT_STEP),
        scores=form.head_dim,
    )


def _merge(form: Form) -> Iterator[Launch]:
    """First within each group, then of the groups. Programs without a group end immediately."""
    piece = compiled_for.state_constants(form.head_dim, DTYPE, family=FAMILY, **form.flags)["PIECE"]
    of_groups = compiled_for.merge_groups_constants(form.head_dim, piece)
    constants = compiled_for.merge_constants(form.head_dim, piece)
    group = group_pieces(TOKENS // piece) * piece
    parts = num_steps(form.head_dim, constants["BC"])
    state = piece_bytes(form.head_dim)
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


def tile(form: Form) -> Launch:
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
    """Branches that the output pass skips: blocks are whole, no score is far above the others."""
    if constants["ONE_STEP"]:
        return (SHORT_BLOCK,)
    return (LAST_IN_BLOCK, SECOND_TIME) if constants["LIMIT"] else (LAST_STEP,)


def _entered_once(constants: Constants) -> tuple[Body, ...]:
    return () if constants["ONE_STEP"] or not constants["LIMIT"] else (FIRST_ROUND,)


def _output_rounds(form: Form, constants: Constants, keys: int) -> dict[str, float]:
    return {
        "i_b": 0,
        "i_n": num_steps(keys, constants["BN"]),
        # Where a block takes several steps, the first sinks are read outside of the loop.
        "i_s": num_steps(SINKS, constants["BS"]) if constants["ONE_STEP"] else 0,
        "i_o": num_steps(SINKS, constants["BS"]),
        "i_c": num_steps(form.head_dim, constants["BC"]),
        **form.map_rounds,
    }


def short_text(form: Form) -> Launch:
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
            "i_c": num_steps(form.head_dim, constants["STATE_BC"]),
            "i_t": SHORT_TOKENS // constants["BT"],  # the last step counts besides
            "i_span": num_steps(SHORT_TOKENS, span.tokens),
            "i_tile": span.tiles,
        },
        skipped=_not_entered(constants),
        once=_entered_once(constants),
    )


def diag_alone(form: Form) -> Launch:
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
    tiles = num_steps(SHORT_TOKENS, query_span(form.block_size, constants["BM"]).rows)
    whole_steps = SHORT_TOKENS // constants["BN"]  # the last one counts besides
    return Launch(
        *("short text, Diag alone", plain.name, lln_diag_kernel, constants),
        tokens=SHORT_TOKENS / tiles,
        bytes=4 * form.row,
        rounds=_output_rounds(plain, constants, whole_steps * constants["BN"]),
        skipped=(SECOND_TIME,),
        once=(FIRST_ROUND,),
    )
