"""Compiles a kernel ahead of time, as it would be launched, and asks what it takes of a device."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.compiler import ASTSource  # type: ignore[import-untyped]

from kernels.attention.gpu.constants import Constants, wide_dtype

# Pointers in the dtype of the inputs.
ROWS = {"p_q", "p_k", "p_v", "p_g", "p_x", "p_out", "p_dq", "p_dk", "p_dv", "p_rows", "p_value"}
ROWS |= {"p_outside_k", "p_outside_v"}
INTEGERS = {"p_cu_seqlens", "p_listed", "p_tile_sequence", "p_tile_rows", "p_tile_first"}
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}
OPTIONS = ("num_warps", "num_stages", "maxnreg")


@dataclass(frozen=True)
class Usage:
    """What one program takes of a device."""

    registers: int  # of a thread
    stack_bytes: int  # local memory of a thread, for what its registers do not hold
    shared_bytes: int
    num_warps: int


@dataclass(frozen=True)
class Compiled:
    cubin: bytes
    usage: Usage

    def disassembly(self) -> str:
        return disassembly(self.cubin)


def disassembly(cubin: bytes) -> str:
    """SASS with the source line of every instruction."""
    return _ask(triton.knobs.nvidia.nvdisasm.path, "-c", "-g", cubin)


def compile_kernel(
    kernel: Any,
    constants: Constants,
    dtype: torch.dtype,
    *,
    capability: int = 90,
    float32_pointers: frozenset[str] = frozenset(),  # of those that are else in the inputs' dtype
) -> Compiled:
    options = {name: constants[name] for name in OPTIONS if name in constants}
    constants = {name: value for name, value in constants.items() if name not in OPTIONS}
    signature, attributes = {}, {}
    for index, name in enumerate(kernel.arg_names):
        signature[name] = _type_of(name, constants, dtype, float32_pointers)
        aligned = name.startswith(("p_", "stride_"))
        if aligned and name not in kernel.do_not_specialize:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    cubin: bytes = compiled.asm["cubin"]
    usage = _ask(triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", cubin)
    found = {name: int(number) for name, number in re.findall(r"(REG|STACK):(\d+)", usage)}
    metadata = compiled.metadata
    return Compiled(
        cubin, Usage(found["REG"], found["STACK"], int(metadata.shared), int(metadata.num_warps))
    )


def _type_of(
    name: str, constants: Constants, dtype: torch.dtype, float32_pointers: frozenset[str]
) -> str:
    if name in constants:
        return "constexpr"
    if name in ROWS and name not in float32_pointers:
        return POINTERS[dtype]
    if name == "p_value_gradient":
        return POINTERS[wide_dtype(dtype)]
    if name.startswith("p_"):
        return "*i32" if name in INTEGERS else "*fp32"
    return "fp32" if name == "scale" else "i32"


def _ask(tool: str, *arguments: str | bytes) -> str:
    """The output of one of the tools that Triton brings along; the last argument is the code."""
    *options, cubin = arguments
    assert isinstance(cubin, bytes), "the code comes last"
    with _file_of(cubin) as path:
        command = [tool, *map(str, options), str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@contextmanager
def _file_of(cubin: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        yield path
