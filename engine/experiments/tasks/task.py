"""What a task is, and two whose answer stands outside a block, generated, with exact answers.

Both are asked of single tokens: `targets` is UNASKED elsewhere. Nothing that a question needs
stands in its own block, or, in `majority`, more than a block's share of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

UNASKED = -100
BINS = 4
"""Into how many ranges of distance the accuracy is divided."""


Part: TypeAlias = Literal["training", "validation", "test"]
"""No two parts of real data share an example; generated examples come from different seeds."""


class Examples(NamedTuple):
    """A task that `pools` asks once of a whole sequence: M is 1. Others ask tokens: M is N."""

    tokens: Tensor  # [B, N], or [B, N, P] of patches
    targets: Tensor  # [B, M] the class, or UNASKED
    distances: Tensor  # [B, M] tokens between a question and its answer; 0 where there is no such


class TokenTask(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def length(self) -> int: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def classes(self) -> int: ...

    @property
    def reads_neighbour(self) -> bool: ...

    @property
    def pools(self) -> bool:
        """Whether one answer is read from the mean of all tokens."""
        ...

    @property
    def patch(self) -> int:
        """How many numbers a token is, P; 0 where tokens are symbols."""
        ...

    def sources(self) -> Mapping[str, str]:
        """The data that is read, with a hash of each; a typed error if one is not installed."""
        ...

    def draw(self, count: int, generator: Generator, part: Part) -> Examples: ...


class Task:
    """What most tasks have in common: examples of symbols that depend on the generator alone."""

    pools: ClassVar[bool] = False
    patch: ClassVar[int] = 0

    def sources(self) -> Mapping[str, str]:
        return {}


@dataclass(frozen=True, kw_only=True)
class Recall(Task):
    """Keys get values in the first half; the second half asks for the value of one key a token.

    Each of `keys` symbols stands once in the first half, at a random even place, with its value
    after it; the rest of the half is filler. Blocks that divide the half hold no question together
    with its answer.
    """

    length: int
    keys: int
    values: int
    name: str = "recall"
    reads_neighbour: bool = True  # a key and its value become one pair

    @property
    def vocabulary(self) -> int:
        return self.keys + self.values + 1

    @property
    def classes(self) -> int:
        return self.values

    def draw(self, count: int, generator: Generator, part: Part = "training") -> Examples:
        half = self.length // 2
        filler = self.keys + self.values
        tokens = torch.full((count, self.length), filler)
        places = 2 * _permutations(count, half // 2, generator)[:, : self.keys]
        values = torch.randint(self.values, (count, self.keys), generator=generator)
        tokens.scatter_(1, places, torch.arange(self.keys).expand(count, -1))
        tokens.scatter_(1, places + 1, self.keys + values)
        asked = torch.randint(self.keys, (count, half), generator=generator)
        tokens[:, half:] = asked
        targets = torch.full_like(tokens, UNASKED)
        targets[:, half:] = values.gather(1, asked)
        distances = torch.zeros_like(tokens)
        distances[:, half:] = torch.arange(half, self.length) - places.gather(1, asked)
        return Examples(tokens, targets, distances)


@dataclass(frozen=True, kw_only=True)
class Majority(Task):
    """Which symbol is the most frequent of the whole text? Asked of the first token.

    A share of the tokens is the symbol that was drawn to win, the others are uniform. The answer is
    the symbol that is in truth the most frequent, the first of those if several are.
    """

    length: int
    symbols: int
    favoured: float
    name: str = "majority"
    reads_neighbour: bool = False

    @property
    def vocabulary(self) -> int:
        return self.symbols + 1

    @property
    def classes(self) -> int:
        return self.symbols

    def draw(self, count: int, generator: Generator, part: Part = "training") -> Examples:
        shape = (count, self.length)
        winner = torch.randint(self.symbols, (count, 1), generator=generator)
        uniform = torch.randint(self.symbols, shape, generator=generator)
        is_favoured = torch.rand(shape, generator=generator) < self.favoured
        tokens = torch.where(is_favoured, winner, uniform)
        counts = F.one_hot(tokens[:, 1:], self.symbols).sum(1)
        tokens[:, 0] = self.symbols
        targets = torch.full_like(tokens, UNASKED)
        targets[:, 0] = counts.argmax(1)
        return Examples(tokens, targets, torch.zeros_like(tokens))


def _permutations(count: int, size: int, generator: Generator) -> Tensor:
    return torch.rand((count, size), generator=generator).argsort(1)


def accuracy_by_distance(correct: Tensor, distances: Tensor, length: int) -> dict[str, float]:
    """The share of right answers in each quarter of the possible distances that has any."""
    found = {}
    for quarter in range(BINS):
        low, high = quarter * length // BINS, (quarter + 1) * length // BINS
        is_inside = (distances > low) & (distances <= high)
        if is_inside.any():
            found[f"accuracy_at_{low}_to_{high}"] = float(correct[is_inside].double().mean())
    return found
