"""Vectors kept in a folder, so that an evaluation that was interrupted reads no text twice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.model.embedding_model import EmbeddingModel
from engine.training.encode import ReadWhole, Vectors, read_linked, read_whole, vectors_of
from engine.training.model_folder import write_whole
from engine.training.token_corpus import TokenRange
from engine.types import Ids


class VectorStore:
    """Reads texts, and keeps what was found by the model and the texts; without a folder it keeps
    nothing."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def vectors_of(self, model: EmbeddingModel, texts: Sequence[NDArray[Any]]) -> Vectors:
        [vectors] = self._kept(
            _key(model, texts, b"alone"), lambda: (vectors_of(model, texts),), count=1
        )
        return vectors

    def read_whole(
        self, model: EmbeddingModel, texts: Sequence[Ids], spans: Sequence[Sequence[TokenRange]]
    ) -> ReadWhole:
        key = _key(model, texts, b"late" + _places(spans))
        return ReadWhole(*self._kept(key, lambda: read_whole(model, texts, spans), count=2))

    def read_linked(
        self, model: EmbeddingModel, texts: Sequence[Ids], spans: Sequence[Sequence[TokenRange]]
    ) -> Vectors:
        key = _key(model, texts, b"linked" + _places(spans))
        [vectors] = self._kept(key, lambda: (read_linked(model, texts, spans),), count=1)
        return vectors

    def _kept(
        self, key: str, compute: Callable[[], Iterable[Vectors]], *, count: int
    ) -> list[Vectors]:
        if self._folder is None:
            return list(compute())
        path = self._folder / f"{key}.npz"
        if not path.exists():
            found = list(compute())
            write_whole(path, lambda unfinished: _save(unfinished, found))
        with np.load(path) as kept:
            return [kept[f"arr_{at}"] for at in range(count)]


def _places(spans: Sequence[Sequence[TokenRange]]) -> bytes:
    return np.array([place for inside in spans for span in inside for place in span]).tobytes()


def _save(path: Path, arrays: Sequence[Vectors]) -> None:
    with path.open("wb") as file:
        np.savez(file, *arrays)


def _key(model: EmbeddingModel, texts: Sequence[NDArray[Any]], rest: bytes) -> str:
    info = model.info
    read_by = f"{info.revision} {info.calibration} {info.attention} {info.dtype}"
    digest = hashlib.sha256(read_by.encode())
    for text in texts:
        digest.update(len(text).to_bytes(8) + text.tobytes())
    digest.update(rest)
    return digest.hexdigest()
