"""Compiles the Triton kernels ahead of time and prints a JSON line for each; needs no GPU.

A script of its own, because a process whose kernels are interpreted cannot compile them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.compiler import ASTSource  # type: ignore[import-untyped]

from kernels.attention import triton_launch
from kernels.attention.triton_output import lln_diag_kernel
from kernels.attention.triton_state import lln_state_kernel, merge_pieces_kernel
from kernels.attention.triton_tiles import state_tile

HEAD_DIMS = (16, 32, 64, 128, 256)
CAPABILITIES = (80, 89, 90)
ROWS = {"p_q", "p_k", "p_v", "p_out", "p_value"}  # pointers in the dtype of the inputs
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
FORMS = ("state", "merge", "one tile a block", "tiles of a block", "LLN alone", "Diag alone")


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
    """All that we would launch. float16 stands in bfloat16's place: both are two bytes wide."""
    dtypes = (torch.float32, torch.bfloat16)
    for build in product(FORMS, HEAD_DIMS, dtypes, (False, True), CAPABILITIES):
        if build[0] not in ("merge", "Diag alone") or not build[3]:
            yield Build(*build)


def usual_builds() -> Iterator[Build]:
    """Those that meet a limit first: the greatest heads, on the smallest and the newest GPU."""
    for build in every_build():
        if build.form in ("state", "tiles of a block", "one tile a block") and (
            (build.capability == 89 and build.head_dim >= 128 and build.weight)
            or (build.capability == 90 and build.dtype == torch.bfloat16 and not build.weight)
        ):
            yield build


def compile_build(build: Build) -> dict[str, Any]:
    kernel, constants = kernel_of(build)
    options = {name: constants.pop(name) for name in ("num_warps", "num_stages")}
    signature, attributes = {}, {}
    for index, name in enumerate(kernel.arg_names):
        signature[name] = type_of(name, constants, build)
        aligned = name.startswith(("p_", "stride_"))
        if aligned and name not in kernel.do_not_specialize:
            attributes[(index,)] = [["tt.divisibility", 16]]
    target = GPUTarget("cuda", build.capability, 32)
    source = ASTSource(kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=target, options=options)
    return {
        "name": build.name,
        "form": build.form,
        "dtype": str(build.dtype),
        "capability": build.capability,
        "shared_bytes": compiled.metadata.shared,
        "spilled_bytes": spilled_bytes(compiled.asm["cubin"]),
    }


def kernel_of(build: Build) -> tuple[Any, dict[str, Any]]:
    flags: dict[str, Any] = {"weight": build.weight, "bias": build.weight}
    if build.form == "state":
        return lln_state_kernel, triton_launch.state_constants(build.head_dim, build.dtype, **flags)
    if build.form == "merge":
        piece = state_tile(build.head_dim, build.dtype, weight=False).piece
        constants = triton_launch.merge_constants(build.head_dim, piece)
        return merge_pieces_kernel, {"num_stages": 3, **constants}
    block_size = {"one tile a block": 16, "tiles of a block": 512, "Diag alone": 64}
    return lln_diag_kernel, triton_launch.output_constants(
        build.head_dim,
        build.dtype,
        block_size=block_size.get(build.form),
        lln=build.form != "Diag alone",
        sinks=build.form != "LLN alone",
        **flags,
    )


def type_of(name: str, constants: dict[str, Any], build: Build) -> str:
    if name in constants:
        return "constexpr"
    # A state that the caller holds is float32; one that stays inside is in the inputs' dtype.
    is_callers_state = name == "p_value" and build.form == "LLN alone"
    if name in ROWS and not is_callers_state:
        return POINTERS[build.dtype]
    if name.startswith("p_"):
        return "*i32" if name == "p_cu_seqlens" else "*fp32"
    return "fp32" if name == "scale" else "i32"


def spilled_bytes(cubin: bytes) -> int:
    """Local memory a thread needs beyond its registers."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        )
    stack = re.search(r"STACK:(\d+)", usage.stdout)
    assert stack is not None, usage.stdout
    return int(stack.group(1))


def main() -> None:
    builds = every_build() if sys.argv[1:] == ["every"] else usual_builds()
    with ProcessPoolExecutor() as pool:
        for result in pool.map(compile_build, builds):
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
