"""Pictures as sequences, row by row: of pixels, or of patches as a vision transformer has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Generator
from torch.nn import functional as F

from engine.experiments.tasks import images
from engine.experiments.tasks.task import Examples, Part, Task


@dataclass(frozen=True, kw_only=True)
class Pixels(Task):
    shrink: int  # each token is the mean of a square of this side
    levels: int  # of grey; a token is one
    folder: str = str(images.FOLDER)
    name: str = "pixels"
    reads_neighbour: bool = False
    pools: ClassVar[bool] = True
    classes: ClassVar[int] = images.CLASSES

    @property
    def length(self) -> int:
        return (images.SIDE // self.shrink) ** 2

    @property
    def vocabulary(self) -> int:
        return self.levels

    def sources(self) -> Mapping[str, str]:
        return {"fashion-mnist": images.digest(Path(self.folder))}

    def draw(self, count: int, generator: Generator, part: Part = "training") -> Examples:
        pixels, labels = images.drawn(Path(self.folder), count, generator, part)
        small = F.avg_pool2d(pixels[:, None], self.shrink).flatten(1)
        tokens = (small * self.levels / 256).long()
        targets = labels[:, None]
        return Examples(tokens, targets, torch.zeros_like(targets))


@dataclass(frozen=True, kw_only=True)
class Patches(Task):
    side: int  # of a patch
    folder: str = str(images.FOLDER)
    name: str = "vision"
    reads_neighbour: bool = False
    pools: ClassVar[bool] = True
    vocabulary: ClassVar[int] = 0
    classes: ClassVar[int] = images.CLASSES

    @property
    def length(self) -> int:
        return (images.SIDE // self.side) ** 2

    @property
    def patch(self) -> int:  # type: ignore[override]  # here it depends on the side
        return self.side**2

    def sources(self) -> Mapping[str, str]:
        return {"fashion-mnist": images.digest(Path(self.folder))}

    def draw(self, count: int, generator: Generator, part: Part = "training") -> Examples:
        pixels, labels = images.drawn(Path(self.folder), count, generator, part)
        patches = F.unfold(pixels[:, None] / 255, self.side, stride=self.side).mT
        targets = labels[:, None]
        return Examples(patches, targets, torch.zeros_like(targets))
