"""Chooses the device and the precision that an engine runs in."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from engine.errors import InvalidInput
from engine.platform.byte_products import adds_pairs
from kernels.attention.processor import BFLOAT16_TILES, Units, has_any

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPES: tuple[str, ...] = tuple(_DTYPES)
"""Dtypes of attention."""

REDUCED = "int8_reduced"
"""int8 with weights so small that two products, of neighbours, fit into 16 bits."""

_PRECISIONS = {**_DTYPES, "int8": torch.int8, REDUCED: torch.int8}
PRECISIONS: tuple[str, ...] = tuple(_PRECISIONS)
"""Precisions of the matrix products."""

_UNITS_FOR_BFLOAT16: Units = {
    "avx512_bf16": ("AVX512_CORE_BF16", "FP16", "AVX10", "AMX", "DEFAULT"),
    **BFLOAT16_TILES,
}
_UNITS_FOR_INT8: Units = {
    "avx512_vnni": ("AVX512_CORE_VNNI", *_UNITS_FOR_BFLOAT16["avx512_bf16"]),
    "avx_vnni": ("AVX2_VNNI", "AVX512_CORE_FP16", "AVX10", "AMX", "DEFAULT"),
    "amx_int8": ("AMX", "DEFAULT"),
}
_UNITS_FOR_REDUCED_INT8: Units = {"avx2": ("AVX2", "AVX512", "AVX10", "AMX", "DEFAULT")}


@dataclass(frozen=True)
class Placement:
    device: torch.device
    precision: str  # of matrix products, which take most of the time

    @property
    def dtype(self) -> torch.dtype:
        """What numbers matrix products take."""
        return torch_dtype(self.precision)

    @property
    def tensor_dtype(self) -> torch.dtype:
        """The dtype of all other tensors of a checkpoint."""
        return torch.float32 if self.device.type == "cpu" else self.dtype


def choose_placement(device: str, dtype: str, fallback: str = "none") -> Placement:
    """Resolves "auto" for this machine, and "int8" where only its reduced range is exact. What the
    machine cannot run is replaced by `fallback`, or rejected if that is "none"."""
    chosen = _choose_device(device)
    if dtype == "auto":
        return Placement(chosen, "bfloat16" if chosen.type == "cuda" else "float32")
    for param, name, others in (("dtype", dtype, "auto"), ("fallback_dtype", fallback, "none")):
        if name not in (others, *_PRECISIONS):
            raise _invalid(param, name, f"one of {others}, {', '.join(_PRECISIONS)}")
    possible = _what_is_possible(chosen.type, dtype)
    if possible is None:
        return Placement(chosen, _for_this_cpu(dtype))
    if fallback == "none":
        raise _invalid("dtype", dtype, possible, "; fallback_dtype may name what to use instead")
    if instead := _what_is_possible(chosen.type, fallback):
        raise _invalid("fallback_dtype", fallback, instead)
    logger.warning(
        "%s cannot be used here, and %s is used instead; possible is %s", dtype, fallback, possible
    )
    return Placement(chosen, _for_this_cpu(fallback))


def _for_this_cpu(precision: str) -> str:
    """int8 takes the form that this CPU multiplies without an error."""
    if precision != "int8" or cpu_multiplies_int8():
        return precision
    logger.warning(
        "int8 is used as %s here: this CPU adds pairs of products in 16 bits, so weights have a "
        "smaller range; vectors differ a little from those of int8 on a CPU with VNNI",
        REDUCED,
    )
    return REDUCED


def possible_precisions(device_type: str = "cpu") -> tuple[str, ...]:
    """The precisions that this machine can use on such a device."""
    possible = (name for name in PRECISIONS if _what_is_possible(device_type, name) is None)
    return tuple(name for name in possible if name != "int8" or cpu_multiplies_int8())


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of numbers in this precision, one of PRECISIONS."""
    return _PRECISIONS[name]


def check_training_precision(device: str, precision: str) -> None:
    """Raises for bfloat16 on a CPU without units for it, where it is many times slower."""
    if possible := _what_is_possible(_choose_device(device).type, precision):
        raise _invalid("precision", precision, possible)


def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has bfloat16 units. Without them bfloat16 is slower than float32."""
    return has_any(_UNITS_FOR_BFLOAT16)


def cpu_multiplies_int8() -> bool:
    """Whether this CPU adds products of bytes in 32 bits. Older instructions add them in 16 bits,
    which can overflow."""
    return has_any(_UNITS_FOR_INT8)


def cpu_multiplies_reduced_int8() -> bool:
    """Whether this CPU multiplies bytes faster than float32, and adds products of neighbours
    exactly as long as two of them fit into 16 bits."""
    return cpu_multiplies_int8() or (has_any(_UNITS_FOR_REDUCED_INT8) and adds_pairs())


def _what_is_possible(device_type: str, dtype: str) -> str | None:
    """None if this dtype is possible on this device; otherwise what is."""
    if device_type != "cpu":
        is_int8 = _PRECISIONS[dtype] is torch.int8
        return "float32, bfloat16 or float16 on a GPU" if is_int8 else None
    if dtype == "float16":
        return "float32, bfloat16 or int8 on a CPU"
    if dtype == "bfloat16" and not cpu_multiplies_bfloat16():
        return "float32 on this CPU, which has no units for bfloat16"
    if _PRECISIONS[dtype] is torch.int8 and not cpu_multiplies_reduced_int8():
        return "float32 on this CPU, which has no instructions that add int8 products exactly"
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
        gpus = f"one of the {num_gpus} GPUs of this machine"
        none = "auto or cpu on this machine, where torch finds no GPU"
        raise _invalid("device", name, gpus if num_gpus else none)
    return device


def _invalid(param: str, actual: str, limit: str, advice: str = "") -> InvalidInput:
    return InvalidInput(
        f"{param} {actual!r} cannot be used; use {limit}{advice}",
        code="invalid_setting",
        param=param,
        limit=limit,
        actual=actual,
    )
