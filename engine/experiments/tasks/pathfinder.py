"""Pathfinder (Linsley et al., 2018): do the two marked ends belong to one dashed curve?

Two long curves and some short ones lie apart from each other. Ends of one curve, or of both, are
marked. The distance between the marks is drawn before the answer and tells nothing of it. The
pictures are generated here, smaller and plainer than the published ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from torch import Generator, Tensor

from engine.experiments.tasks.task import Examples, Part, Task

Pixel: TypeAlias = tuple[int, int]

_BLANK, _DASH, _MARK = range(3)
_APART = 2  # pixels that stay blank between two curves; a gap in a curve is one
_DASH_EVERY = 3  # pixels: two drawn, one blank
_TURN = 0.4  # radians a step, at random
_TRIES = 8
_SEED_OF_PART = {"training": 11, "validation": 12, "test": 13}


class Picture(NamedTuple):
    long: tuple[Sequence[Pixel], Sequence[Pixel]]
    short: Sequence[Sequence[Pixel]]


@dataclass(frozen=True, kw_only=True)
class Pathfinder(Task):
    side: int
    path: int  # pixels of a long curve
    distractors: int  # of a third of its length
    marks_apart: tuple[int, int]  # the least and the most distance of the marks
    pictures: int  # of each part, drawn once and then chosen from
    name: str = "pathfinder"
    reads_neighbour: bool = False
    pools: ClassVar[bool] = True
    vocabulary: ClassVar[int] = 3
    classes: ClassVar[int] = 2

    @property
    def length(self) -> int:
        return self.side**2

    def draw(self, count: int, generator: Generator, part: Part = "training") -> Examples:
        every = _drawn(self, part)
        at = torch.randint(self.pictures, (count,), generator=generator)
        return Examples(*(one[at] for one in every))

    def make(self, random: Random) -> tuple[Tensor, int, int]:
        """Tokens, the answer, and the tokens between the marks."""
        answer, apart = random.randrange(2), random.randint(*self.marks_apart)
        while True:
            picture = self._picture(random)
            marks = _marks(picture, answer, apart)
            if marks is not None:
                break
        tokens = torch.full((self.side, self.side), _BLANK)
        for curve in (*picture.long, *picture.short):
            for place, (row, column) in enumerate(curve):
                if (place + 1) % _DASH_EVERY:
                    tokens[row, column] = _DASH
        for row, column in marks:
            tokens[row, column] = _MARK
        first, second = (row * self.side + column for row, column in marks)
        return tokens.flatten(), answer, abs(first - second)

    def _picture(self, random: Random) -> Picture:
        while True:
            taken: set[Pixel] = set()
            curves = []
            for size in (self.path, self.path, *(self.path // 3,) * self.distractors):
                curve = _curve(random, self.side, size, taken)
                if curve is None:
                    break
                curves.append(curve)
                taken.update(_around(curve, _APART))
            else:
                return Picture((curves[0], curves[1]), curves[2:])


@cache
def _drawn(task: Pathfinder, part: Part) -> Examples:
    random = Random(_SEED_OF_PART[part])
    tokens, answers, distances = zip(
        *(task.make(random) for _ in range(task.pictures)), strict=True
    )
    return Examples(
        torch.stack(tokens), torch.tensor(answers)[:, None], torch.tensor(distances)[:, None]
    )


def _marks(picture: Picture, answer: int, apart: int) -> tuple[Pixel, Pixel] | None:
    """Ends at this distance, of one curve if the answer is 1 and of both if it is 0."""
    first, second = ((curve[0], curve[-1]) for curve in picture.long)
    pairs = (first, second) if answer else ((one, other) for one in first for other in second)
    return next((pair for pair in pairs if round(math.dist(*pair)) == apart), None)


def _curve(random: Random, side: int, size: int, taken: set[Pixel]) -> list[Pixel] | None:
    """Pixels of a smooth walk that meets neither what is taken nor itself."""
    for _ in range(_TRIES):
        found = _walk(random, side, size, taken)
        if found is not None:
            return found
    return None


def _walk(random: Random, side: int, size: int, taken: set[Pixel]) -> list[Pixel] | None:
    row, column = random.uniform(0, side - 1), random.uniform(0, side - 1)
    angle = random.uniform(0, 2 * math.pi)
    pixels: list[Pixel] = []
    while len(pixels) < size:
        pixel = round(row), round(column)
        if not pixels or pixel != pixels[-1]:
            is_inside = 0 <= pixel[0] < side and 0 <= pixel[1] < side
            if not is_inside or pixel in taken or _touches(pixel, pixels[:-3]):
                return None
            pixels.append(pixel)
        angle += random.gauss(0, _TURN)
        row, column = row + math.sin(angle), column + math.cos(angle)
    return pixels


def _touches(pixel: Pixel, others: Iterable[Pixel]) -> bool:
    row, column = pixel
    return any(abs(row - up) <= 1 and abs(column - right) <= 1 for up, right in others)


def _around(pixels: Iterable[Pixel], reach: int) -> set[Pixel]:
    steps = range(-reach, reach + 1)
    return {(row + up, column + right) for row, column in pixels for up in steps for right in steps}
