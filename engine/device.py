"""Which device and number format an engine runs on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.errors import InvalidInput

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPES: tuple[str, ...] = tuple(_DTYPES)


@dataclass(frozen=True)
class Placement:
    device: torch.device
    dtype: torch.dtype  # of the products, which take the time

    @property
    def state_dtype(self) -> torch.dtype:
        """Of everything else: a CPU adds and normalises in float32 as fast as in anything."""
        return torch.float32 if self.device.type == "cpu" else self.dtype

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


def choose_placement(config: EngineConfig) -> Placement:
    """The configured device and dtype, "auto" resolved by what this machine has."""
    device = _choose_device(config.device)
    if config.dtype == "auto":
        return Placement(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    if config.dtype not in _DTYPES:
        raise _invalid("dtype", config.dtype, f"one of auto, {', '.join(_DTYPES)}")
    if device.type == "cpu":
        _check_on_cpu(config.dtype)
    return Placement(device, _DTYPES[config.dtype])


def torch_dtype(name: str) -> torch.dtype:
    """The number format of this name, one of DTYPES."""
    return _DTYPES[name]


def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has units for it; without them it would be slower than float32."""
    if not hasattr(torch.cpu, "get_capabilities"):  # an older torch cannot tell
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
