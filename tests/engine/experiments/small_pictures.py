"""Files like Fashion-MNIST's, of random pictures."""

from __future__ import annotations

import gzip
from pathlib import Path

import torch
from torch import Generator


def write_pictures(folder: Path) -> None:
    generator = Generator().manual_seed(0)
    for name, count in (("train", 30), ("t10k", 7)):
        pixels = torch.randint(256, (count, 28, 28), generator=generator, dtype=torch.uint8)
        labels = torch.randint(10, (count,), generator=generator, dtype=torch.uint8)
        for kind, header, content in (("images-idx3", 16, pixels), ("labels-idx1", 8, labels)):
            path = folder / f"{name}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(bytes(header) + content.numpy().tobytes()))
