"""Compiles the Triton kernels ahead of time and prints a JSON line for each; needs no GPU.

It runs as a script, because a process whose kernels are interpreted cannot compile them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from kernels.attention.gpu import constants as compiled_for
from kernels.attention.gpu import tiles
from kernels.attention.gpu.backward_lln import key_map_gradient_kernel
from kernels.attention.gpu.backward_rows import rows_gradient_kernel
from kernels.attention.gpu.backward_state import state_gradient_kernel
from kernels.attention.gpu.backward_sums import diag_rows_kernel
from kernels.attention.gpu.backward_tiles import add_tiles_kernel, add_to_sinks_kernel
from kernels.attention.gpu.forward_merge import merge_groups_kernel, merge_pieces_kernel
from kernels.attention.gpu.forward_output import lln_diag_kernel
from kernels.attention.gpu.forward_short import short_sequences_kernel
from kernels.attention.gpu.forward_state import lln_state_kernel
from kernels.attention.gpu.gate import gate_constants, gate_gradient_kernel, gate_kernel
from kernels.attention.gpu.pieces import add_groups_kernel, add_pieces_kernel
from kernels.attention.gpu.softmax import softmax_kernel
from kernels.instructions.compile import compile_kernel
from kernels.instructions.descriptors import wrong_descriptors
from kernels.instruments.gpu.moments import moments_constants, moments_kernel
from kernels.instruments.gpu.row_statistics import row_constants, row_statistics_kernel

HEAD_DIMS = (16, 32, 64, 128, 256)
CAPABILITIES = (80, 89, 90)
FORWARD = ("state", "merge of groups", "merge", "short", "one tile a block", "tiles of a block")
PARTS = ("LLN alone", "Diag alone", "whole sequences")
BACKWARD = ("state gradient", "rows gradient, one tile", "rows gradient, tiles")
SMALL = ("diag rows", "key map gradient", "add groups", "add pieces", "add tiles", "add to sinks")
GATE = ("gate", "gate gradient")
INSTRUMENTS = ("row statistics", "moments")
FORMS = (*FORWARD, *PARTS, *BACKWARD, *SMALL, *GATE, *INSTRUMENTS)
MAPPED = {"state", "short", "one tile a block", "tiles of a block", "LLN alone", *BACKWARD}


@dataclass(frozen=True)
class Build:
    """One kernel as it would be launched."""

    form: str
    head_dim: int
    dtype: torch.dtype
    weight: bool
    capability: int

    @property
    def name(self) -> str:
        mapped = ", mapped" if self.weight else ""
        return f"{self.form}{mapped}, D {self.head_dim}, {self.dtype}, sm_{self.capability}"


def every_build() -> Iterator[Build]:
    """Every build that can be launched. bfloat16 stands for float16 too: both take two bytes."""
    dtypes = (torch.float32, torch.bfloat16)
    for build in product(FORMS, HEAD_DIMS, dtypes, (False, True), CAPABILITIES):
        is_launched = build[0] != "short" or build[1] <= 64
        if is_launched and (build[0] in MAPPED or not build[3]):
            yield Build(*build)


def usual_builds() -> Iterator[Build]:
    """Every kernel for every GPU in its usual form, and the builds that meet a limit first.

    Those are the greatest heads, on the smallest and the newest GPU.
    """
    for build in every_build():
        is_wide = build.capability == 89 and build.head_dim >= 128 and build.weight
        narrow = build.dtype == torch.bfloat16
        is_plain = narrow and not build.weight
        is_usual = build.capability == 90 and is_plain
        is_usual_size = build.capability == 90 and narrow and build.head_dim in (32, 64)
        if (
            (is_plain and build.head_dim == 64)
            or (
                (build.form in ("state", "one tile a block", "tiles of a block"))
                and (is_wide or is_usual)
            )
            or (build.form == "whole sequences" and (is_usual or build.head_dim == 256))
            or (build.form in MAPPED and is_usual_size and build.weight)
            or build == Build("rows gradient, tiles", 128, torch.float32, True, 89)
            or (build.form in INSTRUMENTS and build.capability == 89 and build.head_dim >= 64)
        ):
            yield build


def compile_build(build: Build) -> dict[str, Any]:
    kernel, constants = kernel_of(build)
    # A state that callers get is float32; an internal one is in the inputs' dtype.
    single = frozenset({"p_value"} if build.form == "LLN alone" else ())
    compiled = compile_kernel(
        kernel, constants, build.dtype, capability=build.capability, float32_pointers=single
    )
    usage = compiled.usage
    return {
        "name": build.name,
        "form": build.form,
        "dtype": str(build.dtype),
        "capability": build.capability,
        "shared_bytes": usage.shared_bytes,
        "spilled_bytes": usage.stack_bytes,
        "wrong": [str(wrong) for wrong in wrong_descriptors(compiled.disassembly())],
    }


def kernel_of(build: Build) -> tuple[Any, dict[str, Any]]:
    head_dim, dtype = build.head_dim, build.dtype
    flags: dict[str, Any] = {"weight": build.weight, "bias": build.weight}
    # As models have them.
    of_mix: dict[str, Any] = {"gate": build.weight, "mix_scale": build.weight}
    both_maps: dict[str, Any] = {"q_map": flags, "k_map": flags}
    piece = tiles.piece_tokens(head_dim)
    match build.form:
        case "state":
            return lln_state_kernel, compiled_for.state_constants(head_dim, dtype, **flags)
        case "merge of groups":
            constants = compiled_for.merge_groups_constants(head_dim, piece)
            return merge_groups_kernel, constants
        case "merge":
            return merge_pieces_kernel, compiled_for.merge_constants(head_dim, piece)
        case "short":
            constants = compiled_for.short_constants(
                head_dim, dtype, block_size=64, sinks=True, **both_maps, **of_mix
            )
            return short_sequences_kernel, constants
        case "one tile a block" | "tiles of a block" | "Diag alone" | "LLN alone":
            sizes = {"one tile a block": 16, "tiles of a block": 512, "Diag alone": 64}
            return lln_diag_kernel, compiled_for.output_constants(
                head_dim,
                dtype,
                block_size=sizes.get(build.form),
                lln=build.form != "Diag alone",
                sinks=build.form != "LLN alone",
                **flags,
                **(of_mix if build.form in FORWARD else {}),
            )
        case "whole sequences":
            return softmax_kernel, compiled_for.softmax_constants(head_dim, dtype)
        case "state gradient":
            constants = compiled_for.state_gradient_constants(head_dim, dtype, mix=True, **flags)
            return state_gradient_kernel, constants
        case "rows gradient, one tile" | "rows gradient, tiles" | "diag rows":
            constants = compiled_for.rows_gradient_constants(
                head_dim,
                dtype,
                block_size=16 if build.form.endswith("one tile") else 512,
                lln=True,
                sinks=True,
                **both_maps,
            )
            if build.form == "diag rows":
                return diag_rows_kernel, compiled_for.diag_rows_constants(constants)
            return rows_gradient_kernel, constants
        case "key map gradient":
            return key_map_gradient_kernel, compiled_for.key_map_constants(head_dim, dtype)
        case "add groups" | "add pieces":
            constants = compiled_for.add_pieces_constants(piece, head_dim**2)
            if build.form == "add groups":
                return add_groups_kernel, compiled_for.add_groups_constants(constants)
            return add_pieces_kernel, constants
        case "add tiles":
            return add_tiles_kernel, {"BT": compiled_for.ADDED_NUMBERS}
        case "add to sinks":
            return add_to_sinks_kernel, compiled_for.add_to_sinks_constants(head_dim)
        case "gate":
            return gate_kernel, gate_constants(head_dim, dtype)
        case "gate gradient":
            return gate_gradient_kernel, gate_constants(head_dim, dtype)
        case "row statistics":
            constants = row_constants(head_dim, scores=True, channels=True)
            return row_statistics_kernel, constants
        case _:
            return moments_kernel, moments_constants(head_dim)


def main() -> None:
    builds = every_build() if sys.argv[1:] == ["every"] else usual_builds()
    with ProcessPoolExecutor() as pool:
        for result in pool.map(compile_build, builds):
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
