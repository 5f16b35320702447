"""Calibrations: the numbers that turn a softmax checkpoint into an LLN+Diag one.

A calibration belongs to one weights file. It contains the SHA-256 of that file and is rejected for
any other. The calibrations of "default" and "documents" ship with this package.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from engine.checkpoint.block_size import LongBlock, beyond_a_block, block_of
from engine.checkpoint.registry import DEFAULT_MODEL, is_converted
from engine.errors import CheckpointError
from engine.types import OWN_CONTEXTS, Context, PositionScheme
from kernels.attention.arguments import ArgumentError, check_block_size, check_sinks

FILE_NAME = "lln.safetensors"
SHIPPED = Path(__file__).parent / "calibrations"
_FORMAT = "lln-calibration-1"

# Names of tensors in the file.
_REQUIRED = ("alpha", "beta", "mix", "key_shift")
_TRAINED = ("query_map", "key_map", "gate")
_ADAPTED = "adapted."


@dataclass(frozen=True, kw_only=True)
class Calibration:
    alpha: Tensor  # [L, H]
    beta: Tensor  # [L, H]
    mix: Tensor  # [L, H]
    key_shift: Tensor  # [L, H, D] added to the keys before LLN's exponential
    block_size: int
    num_sinks: tuple[int, int]
    weights_sha256: str
    positions: PositionScheme = "tile"
    long_block: LongBlock | None = None
    pooling_slope: float = 0.0
    """In the mean of a long text, weights grow linearly from 1 - pooling_slope for the first token
    to 1 + pooling_slope for the last, because LLN gives more weight to the beginning. The file and
    the command line call it "rise"."""

    chunk_context: Context = "balanced"
    """The context of chunks for which a caller says none. It changes no other vector, so `sha256`
    does not depend on it."""

    # What training may add.
    query_map: Tensor | None = None  # [L, H, D, D]
    key_map: Tensor | None = None  # [L, H, D, D]
    gate: Tensor | None = None  # [L, H, D]
    adapted: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors that replace the encoder's own, named as in engine/model/weight_overrides.py."""

    @property
    def sha256(self) -> str:
        """Identifies these numbers and settings."""
        digest = hashlib.sha256(_settings(self).encode())
        for name, tensor in sorted(_tensors(self).items()):
            digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def pooling_slope_of(self, num_tokens: int) -> float:
        """The slope in a text of this length. Like LLN's share it is 0 within one block."""
        block_size = block_of(num_tokens, self.block_size, self.long_block)
        return self.pooling_slope * beyond_a_block(num_tokens, block_size)


def has_own_calibration(folder: Path) -> bool:
    """Whether the folder contains a calibration, apart from those that ship with this package."""
    return (folder / FILE_NAME).exists()


def find_calibration(folder: Path, weights_sha256: str, name: str) -> Calibration | None:
    """The folder's own calibration, or the one that ships for these weights."""
    for path in (folder / FILE_NAME, shipped_calibration(weights_sha256, name)):
        if path.exists():
            return read_calibration(path, weights_sha256)
    return None


def shipped_calibration(weights_sha256: str, name: str) -> Path:
    """The path for the converted model of this name; all other names share that of the default."""
    converted = name if is_converted(name) else DEFAULT_MODEL
    return SHIPPED / f"{weights_sha256}.{converted}.safetensors"


def read_calibration(path: Path, weights_sha256: str) -> Calibration:
    tensors, metadata = _read_file(path)
    if metadata.get("format") != _FORMAT:
        raise _invalid(path, f"its format is {metadata.get('format')!r}, expected {_FORMAT!r}")
    made_for = metadata.get("weights_sha256", "")
    if made_for != weights_sha256:
        raise CheckpointError(
            f"{path} was calibrated for weights with SHA-256 {made_for}, not {weights_sha256}; "
            "calibrate again with lln adapt",
            code="calibration_mismatch",
            limit=made_for,
            actual=weights_sha256,
        )
    adapted = {
        name.removeprefix(_ADAPTED): tensors.pop(name)
        for name in sorted(tensors)
        if name.startswith(_ADAPTED)
    }
    numbers: dict[str, Any] = {**tensors, **_read_settings(path, metadata.get("settings", ""))}
    calibration = Calibration(
        **numbers,
        chunk_context=_read_context(path, metadata),
        adapted=adapted,
        weights_sha256=made_for,
    )
    _check(path, calibration)
    return calibration


def write_calibration(path: Path, calibration: Calibration) -> None:
    # Copies, because the format rejects tensors that share memory.
    tensors = {name: tensor.clone() for name, tensor in _tensors(calibration).items()}
    metadata = {
        "format": _FORMAT,
        "weights_sha256": calibration.weights_sha256,
        "settings": _settings(calibration),
    }
    if calibration.chunk_context != "balanced":
        metadata["chunk_context"] = calibration.chunk_context
    # Written here, because a file written by the library is readable by its owner only, and a
    # model made by one user may be served by another.
    path.write_bytes(save(tensors, metadata=metadata))


def _settings(calibration: Calibration) -> str:
    settings = {
        "block_size": calibration.block_size,
        "num_sinks": list(calibration.num_sinks),
        "positions": calibration.positions,
    }
    if calibration.long_block is not None:
        settings["long_block"] = calibration.long_block._asdict()
    if calibration.pooling_slope:
        settings["rise"] = calibration.pooling_slope
    return json.dumps(settings)


def _read_settings(path: Path, written: str) -> dict[str, Any]:
    """Reads what `_settings` writes, as fields of a calibration."""
    try:
        settings = json.loads(written)
        block_size, (first, last) = settings["block_size"], settings["num_sinks"]
        if not all(type(number) is int for number in (block_size, first, last)):
            raise _invalid(path, f"its settings have a size that is not an integer: {written}")
        return {
            "block_size": check_block_size(block_size),
            "num_sinks": tuple(check_sinks((first, last))),
            "positions": settings.get("positions", "tile"),
            "long_block": _read_long_block(settings.get("long_block"), block_size),
            "pooling_slope": check_pooling_slope(settings.get("rise", 0.0)),
        }
    except ArgumentError as error:
        raise _invalid(path, str(error)) from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _invalid(path, f"its settings are {written!r}") from error


def _read_context(path: Path, metadata: Mapping[str, str]) -> Context:
    written = metadata.get("chunk_context", "balanced")
    for known in OWN_CONTEXTS:
        if written == known:
            return known
    raise _invalid(path, f"its chunk_context is {written!r}, not one of {', '.join(OWN_CONTEXTS)}")


def check_pooling_slope(slope: float) -> float:
    """Checks that no token gets a negative weight."""
    if type(slope) not in (int, float) or not 0 <= slope <= 1:
        raise ArgumentError(f"rise must be 0 to 1, got {slope}")
    return float(slope)


def _read_long_block(written: Any, block_size: int) -> LongBlock | None:
    return None if written is None else LongBlock(**written).checked(block_size)


def _tensors(calibration: Calibration) -> dict[str, Tensor]:
    """All tensors by their names in the file."""
    own = {name: getattr(calibration, name) for name in (*_REQUIRED, *_TRAINED)}
    adapted = {_ADAPTED + name: tensor for name, tensor in calibration.adapted.items()}
    return {name: tensor for name, tensor in (own | adapted).items() if tensor is not None}


def _read_file(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            names = list(file.keys())
            if missing := set(_REQUIRED) - set(names):
                raise _invalid(path, f"it has no tensor {', '.join(sorted(missing))}")
            known = {*_REQUIRED, *_TRAINED}
            for name in names:
                if name not in known and not name.startswith(_ADAPTED):
                    raise _invalid(path, f"it has an unknown tensor {name}")
            return {name: _copied(name, file.get_tensor(name)) for name in names}, (
                file.metadata() or {}
            )
    except (SafetensorError, OSError) as error:
        raise _invalid(path, str(error)) from error


def _check(path: Path, calibration: Calibration) -> None:
    shape = calibration.alpha.shape
    if len(shape) != 2 or any(t.shape != shape for t in (calibration.beta, calibration.mix)):
        raise _invalid(path, "alpha, beta and mix must share one shape (layers, heads)")
    if not bool(((calibration.mix >= 0) & (calibration.mix <= 1)).all()):
        raise _invalid(path, "mix must be between 0 and 1")
    if calibration.key_shift.shape[:2] != shape or calibration.key_shift.dim() != 3:
        raise _invalid(path, "key_shift must be (layers, heads, head size)")
    if calibration.positions not in get_args(PositionScheme):
        raise _invalid(path, f"its position scheme is {calibration.positions!r}")
    _check_trained(path, calibration)
    if not all(bool(torch.isfinite(tensor).all()) for tensor in _tensors(calibration).values()):
        raise _invalid(path, "it contains numbers that are not finite")


def _check_trained(path: Path, calibration: Calibration) -> None:
    head_shape = tuple(calibration.key_shift.shape)
    square = (*head_shape, head_shape[-1])
    for name, shape in (("query_map", square), ("key_map", square), ("gate", head_shape)):
        tensor = getattr(calibration, name)
        if tensor is not None and tuple(tensor.shape) != shape:
            raise _invalid(path, f"{name} is {tuple(tensor.shape)}, expected {shape}")


def _copied(name: str, tensor: Tensor) -> Tensor:
    """In float32, except adapted tensors, which keep their stored half precision.

    A copy, because the library maps the file into memory: if someone writes over it, the numbers of
    a model that is being served would change."""
    dtype = tensor.dtype if name.startswith(_ADAPTED) else torch.float32
    return tensor.to(dtype, copy=True)


def _invalid(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path} is not a usable calibration: {why}", code="invalid_calibration", actual=path.name
    )
