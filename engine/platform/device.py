"""Chooses the device and the dtype that an engine runs on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.errors import InvalidInput

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPES: tuple[str, ...] = tuple(_DTYPES)


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


def choose_placement(device: str, dtype: str) -> Placement:
    """Resolves "auto" for this machine and rejects what it cannot run."""
    chosen = _choose_device(device)
    if dtype == "auto":
        return Placement(chosen, torch.bfloat16 if chosen.type == "cuda" else torch.float32)
    if dtype not in _DTYPES:
        raise _invalid("dtype", dtype, f"one of auto, {', '.join(_DTYPES)}")
    if chosen.type == "cpu":
        _check_on_cpu(dtype)
    return Placement(chosen, _DTYPES[dtype])


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of this name, one of DTYPES."""
    return _DTYPES[name]


def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has bfloat16 units. Without them bfloat16 is slower than float32."""
    if not hasattr(torch.cpu, "get_capabilities"):  # an older torch
        return False
    has = torch.cpu.get_capabilities()
    return bool(has.get("avx512_bf16") or has.get("amx_bf16"))


def _check_on_cpu(dtype: str) -> None:
    if dtype == "float16":
        raise _invalid("dtype", dtype, "float32 or bfloat16 on a CPU")
    if dtype == "bfloat16" and not cpu_multiplies_bfloat16():
        raise _invalid("dtype", dtype, "float32 on this CPU, which has no units for bfloat16")


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


def _invalid(param: str, actual: str, limit: str) -> InvalidInput:
    return InvalidInput(
        f"{param} {actual!r} cannot be used; use {limit}",
        code="invalid_setting",
        param=param,
        limit=limit,
        actual=actual,
    )
