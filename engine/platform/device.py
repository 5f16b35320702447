"""Chooses the device and the precision that an engine runs in."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.errors import InvalidInput

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPES: tuple[str, ...] = tuple(_DTYPES)
"""Dtypes of attention."""

_PRECISIONS = {**_DTYPES, "int8": torch.int8}
PRECISIONS: tuple[str, ...] = tuple(_PRECISIONS)
"""Precisions of the matrix products."""

_ONEDNN_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Variables that keep oneDNN from using newer instructions."""

_UNITS_FOR_BFLOAT16 = {
    "avx512_bf16": ("AVX512_CORE_BF16", "FP16", "AVX10", "AMX", "DEFAULT"),
    "amx_bf16": ("AMX", "DEFAULT"),
}
_UNITS_FOR_INT8 = {
    "avx512_vnni": ("AVX512_CORE_VNNI", *_UNITS_FOR_BFLOAT16["avx512_bf16"]),
    "avx_vnni": ("AVX2_VNNI", "AVX512_CORE_FP16", "AVX10", "AMX", "DEFAULT"),
    "amx_int8": ("AMX", "DEFAULT"),
}
"""Instructions, and parts of the limits under which oneDNN uses them."""


@dataclass(frozen=True)
class Placement:
    device: torch.device
    dtype: torch.dtype  # of matrix products, which take most of the time

    @property
    def state_dtype(self) -> torch.dtype:
        """The dtype of everything else. On a CPU, float32 costs no time there."""
        return torch.float32 if self.device.type == "cpu" else self.dtype

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


def choose_placement(device: str, dtype: str, fallback: str = "none") -> Placement:
    """Resolves "auto" for this machine. What the machine cannot run is replaced by `fallback`,
    or rejected if that is "none"."""
    chosen = _choose_device(device)
    if dtype == "auto":
        return Placement(chosen, torch.bfloat16 if chosen.type == "cuda" else torch.float32)
    for param, name, others in (("dtype", dtype, "auto"), ("fallback_dtype", fallback, "none")):
        if name not in (others, *_PRECISIONS):
            raise _invalid(param, name, f"one of {others}, {', '.join(_PRECISIONS)}")
    possible = _what_is_possible(chosen.type, dtype)
    if possible is None:
        return Placement(chosen, _PRECISIONS[dtype])
    if fallback == "none":
        raise _invalid("dtype", dtype, possible, "; fallback_dtype may name what to use instead")
    if instead := _what_is_possible(chosen.type, fallback):
        raise _invalid("fallback_dtype", fallback, instead)
    logger.warning(
        "%s cannot be used here, and %s is used instead; possible is %s", dtype, fallback, possible
    )
    return Placement(chosen, _PRECISIONS[fallback])


def possible_precisions(device_type: str = "cpu") -> tuple[str, ...]:
    """The precisions that this machine can use on such a device."""
    return tuple(name for name in PRECISIONS if _what_is_possible(device_type, name) is None)


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of this name, one of DTYPES."""
    return _DTYPES[name]


def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has bfloat16 units. Without them bfloat16 is slower than float32."""
    return _has_any(_UNITS_FOR_BFLOAT16)


def cpu_multiplies_int8() -> bool:
    """Whether this CPU adds products of bytes in 32 bits. Older instructions add them in 16 bits,
    which can overflow."""
    return _has_any(_UNITS_FOR_INT8)


def _has_any(units: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether this CPU has one of these instructions, and oneDNN may use it."""
    if not hasattr(torch.cpu, "get_capabilities"):  # an older torch
        return False
    has = torch.cpu.get_capabilities()
    limits = [limit.upper() for name in _ONEDNN_LIMITS if (limit := os.environ.get(name))]
    return any(
        has.get(instruction) and all(any(one in limit for one in allowing) for limit in limits)
        for instruction, allowing in units.items()
    )


def _what_is_possible(device_type: str, dtype: str) -> str | None:
    """None if this dtype is possible on this device; otherwise what is."""
    if device_type != "cpu":
        return "float32, bfloat16 or float16 on a GPU" if dtype == "int8" else None
    if dtype == "float16":
        return "float32, bfloat16 or int8 on a CPU"
    if dtype == "bfloat16" and not cpu_multiplies_bfloat16():
        return "float32 on this CPU, which has no units for bfloat16"
    if dtype == "int8" and not cpu_multiplies_int8():
        return "float32 on this CPU, which has no instructions that add int8 products in 32 bits"
    return None


def _choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise _invalid("device", name, "auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise _invalid("device", name, "auto, cpu, cuda or cuda:N")
    num_gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        raise _invalid("device", name, f"one of the {num_gpus} GPUs of this machine")
    return device


def _invalid(param: str, actual: str, limit: str, advice: str = "") -> InvalidInput:
    return InvalidInput(
        f"{param} {actual!r} cannot be used; use {limit}{advice}",
        code="invalid_setting",
        param=param,
        limit=limit,
        actual=actual,
    )
