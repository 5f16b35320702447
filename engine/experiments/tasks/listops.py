"""ListOps (Nangia and Bowman, 2018): the value of a nested list of operations on digits.

`[MAX 2 9 [MIN 4 7 ] 0 ]` is 9. The operators are the maximum, the minimum, the median (the lower
of the middle two) and the sum modulo 10. As in the Long Range Arena, a value stands for three of
four arguments, and expressions are at least a quarter as long as the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Generator

from engine.experiments.tasks.task import Examples, Part, Task

_DIGITS = 10
_CLOSE = _DIGITS
_VALUE_SHARE = 0.75


def _median(values: Sequence[int]) -> int:
    return sorted(values)[(len(values) - 1) // 2]


OPERATORS: Mapping[int, Callable[[Sequence[int]], int]] = MappingProxyType(
    {11: max, 12: min, 13: _median, 14: lambda values: sum(values) % 10}
)
_FILLER = 15


class _TooLong(Exception):
    pass


@dataclass(frozen=True, kw_only=True)
class ListOps(Task):
    length: int
    max_depth: int
    max_arguments: int
    name: str = "listops"
    reads_neighbour: bool = False
    pools: ClassVar[bool] = True
    vocabulary: ClassVar[int] = _FILLER + 1
    classes: ClassVar[int] = _DIGITS

    def draw(self, count: int, generator: Generator, part: Part = "training") -> Examples:
        random = Random(int(torch.randint(2**62, (), generator=generator)))
        tokens = torch.full((count, self.length), _FILLER)
        targets = torch.empty(count, 1, dtype=torch.long)
        for row in range(count):
            expression = self._expression(random)
            tokens[row, : len(expression)] = torch.tensor(expression)
            targets[row] = evaluate(expression)
        return Examples(tokens, targets, torch.zeros_like(targets))

    def _expression(self, random: Random) -> list[int]:
        while True:
            found: list[int] = []
            try:
                self._grow(random, found, depth=1)
            except _TooLong:
                continue
            if 4 * len(found) >= self.length:
                return found

    def _grow(self, random: Random, found: list[int], depth: int) -> None:
        found.append(random.choice(tuple(OPERATORS)))
        for _ in range(random.randint(2, self.max_arguments)):
            if depth == self.max_depth or random.random() < _VALUE_SHARE:
                found.append(random.randrange(_DIGITS))
            else:
                self._grow(random, found, depth + 1)
            if len(found) >= self.length:
                raise _TooLong
        found.append(_CLOSE)


def evaluate(expression: Sequence[int]) -> int:
    """The value of a whole expression's tokens."""
    tokens = iter(expression)
    return _value(next(tokens), tokens)


def _value(token: int, rest: Iterator[int]) -> int:
    if token < _DIGITS:
        return token
    values = []
    for inner in rest:
        if inner == _CLOSE:
            break
        values.append(_value(inner, rest))
    return OPERATORS[token](values)
