"""Reads a checkpoint's tensors by name, from safetensors files only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.checkpoint.json_files import invalid_json, missing_file, read_object
from engine.errors import CheckpointError

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_HASH_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Where each tensor is stored. No values are read before `tensor` is called."""

    paths: tuple[Path, ...]
    path_of: Mapping[str, Path]
    prefix: str
    """Put before every name by checkpoints that were saved with a head, such as "bert."."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names as stored."""
        return tuple(self.path_of)

    def __contains__(self, name: str) -> bool:
        return self._stored_name(name) is not None

    def tensor(self, name: str) -> Tensor:
        """A copy of one tensor, on the CPU, in its stored dtype.

        `name` is without the prefix. LayerNorm's parameters may also be stored under their early
        names, gamma and beta.
        """
        stored = self._require(name)
        with _opened(self.path_of[stored]) as file:
            tensor: Tensor = file.get_tensor(stored)
        return tensor.clone(memory_format=torch.contiguous_format)

    def path(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self.path_of[self._require(name)]

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, without reading its values."""
        stored = self._require(name)
        with _opened(self.path_of[stored]) as file:
            return tuple(file.get_slice(stored).get_shape())

    def sha256(self) -> str:
        """The hash of the file, or of all shards concatenated in the order of their names."""
        digest = hashlib.sha256()
        for path in self.paths:
            with path.open("rb") as file:
                while block := file.read(_HASH_BLOCK):
                    digest.update(block)
        return digest.hexdigest()

    def _require(self, name: str) -> str:
        stored = self._stored_name(name)
        if stored is None:
            files = ", ".join(str(path) for path in self.paths)
            message = f"tensor {name!r} is not in {files}"
            raise CheckpointError(message, code="missing_tensor", actual=name)
        return stored

    def _stored_name(self, name: str) -> str | None:
        candidates = (prefix + one for one in _spellings(name) for prefix in ("", self.prefix))
        return next((candidate for candidate in candidates if candidate in self.path_of), None)


def open_weights(folder: Path, *, prefix: str) -> Weights:
    """Finds a folder's safetensors, one file or shards, and reads their headers."""
    paths = _weight_paths(folder)
    path_of = {name: path for path in paths for name in _tensor_names(path)}
    return Weights(paths=paths, path_of=path_of, prefix=prefix)


def has_weights(folder: Path) -> bool:
    """Whether the folder has all of its weights files."""
    try:
        return bool(_weight_paths(folder))
    except CheckpointError:
        return False


def _weight_paths(folder: Path) -> tuple[Path, ...]:
    if (folder / _SINGLE_FILE).exists():
        return (folder / _SINGLE_FILE,)
    if (folder / _INDEX_FILE).exists():
        return _shards(folder / _INDEX_FILE)
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise _unsafe(folder, pickles)
    raise missing_file(folder / _SINGLE_FILE)


def _shards(index: Path) -> tuple[Path, ...]:
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise invalid_json(index, "it has no weight_map")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise invalid_json(index, f"{name!r} is not a safetensors file of this folder")
        if not (index.parent / name).exists():
            raise missing_file(index.parent / name)
    return tuple(index.parent / name for name in names)


def _tensor_names(path: Path) -> list[str]:
    with _opened(path) as file:
        return list(file.keys())


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        message = f"{path} is damaged or incomplete: {error}"
        raise CheckpointError(message, code="invalid_weights", actual=path.name) from error


def _spellings(name: str) -> Iterator[str]:
    yield name
    if name.endswith("LayerNorm.weight"):
        yield name.removesuffix("weight") + "gamma"
    if name.endswith("LayerNorm.bias"):
        yield name.removesuffix("bias") + "beta"


def _unsafe(folder: Path, pickles: Sequence[str]) -> CheckpointError:
    return CheckpointError(
        f"{folder} has weights only as pickle ({', '.join(pickles)}), which can run code when it "
        "is read; save them as model.safetensors",
        code="unsafe_weights",
        actual=pickles[0],
    )
