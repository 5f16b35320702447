"""Fashion-MNIST (Xiao et al., 2017): 28 x 28 grey pictures of ten kinds of clothes.

The Debian package dataset-fashion-mnist carries it. A tenth of the published training set is for
validation; the published test set is the test.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from engine.errors import InvalidInput
from engine.experiments.tasks.task import Part

PACKAGE = "dataset-fashion-mnist (Debian)"
FOLDER = Path("/usr/share/datasets/fashion-mnist")
SIDE = 28
CLASSES = 10


class Pictures(NamedTuple):
    pixels: Tensor  # [N, 28, 28] from 0 to 255, float32
    labels: Tensor  # [N]


class _Read(NamedTuple):
    pictures: Mapping[Part, Pictures]
    digest: str


def fashion_mnist(folder: Path) -> Mapping[Part, Pictures]:
    return _read(folder).pictures


def digest(folder: Path) -> str:
    return _read(folder).digest


def drawn(folder: Path, count: int, generator: Generator, part: Part) -> Pictures:
    """Random pictures of a part, with repetition."""
    pictures = fashion_mnist(folder)[part]
    at = torch.randint(len(pictures.labels), (count,), generator=generator)
    return Pictures(pictures.pixels[at], pictures.labels[at])


@cache
def _read(folder: Path) -> _Read:
    contents = {name: _contents(folder, name) for name in ("train", "t10k")}
    whole = {name: _decoded(*parts) for name, parts in contents.items()}
    train, test = whole["train"], whole["t10k"]
    first = len(train.labels) // 10 * 9
    found = hashlib.sha256(b"".join(part for parts in contents.values() for part in parts))
    return _Read(
        {
            "training": Pictures(train.pixels[:first], train.labels[:first]),
            "validation": Pictures(train.pixels[first:], train.labels[first:]),
            "test": test,
        },
        found.hexdigest(),
    )


def _contents(folder: Path, name: str) -> tuple[bytes, bytes]:
    paths = folder / f"{name}-images-idx3-ubyte.gz", folder / f"{name}-labels-idx1-ubyte.gz"
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise InvalidInput(
            f"Fashion-MNIST needs the package {PACKAGE}, which is not installed: there is no "
            f"{missing[0]}",
            code="missing_package",
            actual="fashion-mnist",
        )
    images, labels = (gzip.decompress(path.read_bytes()) for path in paths)
    return images, labels


def _decoded(images: bytes, labels: bytes) -> Pictures:
    """Pictures in the IDX format: a header of 4 bytes and 4 for each dimension, then bytes."""
    pixels: NDArray[np.uint8] = np.frombuffer(images, np.uint8, offset=16)
    classes: NDArray[np.uint8] = np.frombuffer(labels, np.uint8, offset=8)
    return Pictures(
        torch.from_numpy(pixels.astype(np.float32)).view(-1, SIDE, SIDE),
        torch.from_numpy(classes.astype(np.int64)),
    )
