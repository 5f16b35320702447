"""The launches of the backward over a document."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.attention.gpu import constants as compiled_for
from kernels.attention.gpu.backward_rows import rows_gradient_kernel
from kernels.attention.gpu.backward_state import state_gradient_kernel
from kernels.attention.gpu.backward_sums import diag_rows_kernel
from kernels.attention.gpu.tiles import query_span
from kernels.instructions.bodies import SECOND_TIME
from kernels.instructions.forms import (
    DTYPE,
    FAMILY,
    FLOAT_BYTES,
    SINKS,
    Form,
    num_steps,
    piece_bytes,
)
from kernels.instructions.launch import Launch


def backward(form: Form) -> Iterator[Launch]:
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
    steps = num_steps(form.block_size, rows["BN"])
    rounds = {
        "i_b": 0,
        "i_n": steps,
        "i_rest": 0 if rows["BD"] <= 64 else steps,
        "i_s": num_steps(SINKS, rows["BS"]),
        "i_c": num_steps(form.head_dim, rows["BC"]),
        "i_k": num_steps(form.head_dim, rows["BK"]),
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
    piece, parts = constants["PIECE"], num_steps(form.head_dim, constants["BC"])
    return Launch(
        *("state's gradient", form.state_name, state_gradient_kernel, constants),
        tokens=piece / parts,
        bytes=2 * form.row + form.mix + piece_bytes(form.head_dim) / piece,
        rounds={
            "i_b": 0,
            "i_t": num_steps(piece, constants["BT"]),
            "i_c": num_steps(form.head_dim, constants["BC"]),
            "i_k": num_steps(form.head_dim, constants["BK"]),
        },
        scores=form.head_dim,
    )
