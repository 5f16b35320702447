"""Two stretches of real text, byte by byte: are they of one document?

As in the Long Range Arena's retrieval of documents, the model reads both as one sequence and
answers once. A pair that does not match is of two documents, drawn like those that match: first a
corpus, then a document of it. So the two stretches of half of those pairs come of two corpora.
Each half alone says nothing: any answer better than a guess compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, TypeVar

import torch
from torch import Generator, Tensor

from engine.errors import InvalidInput
from engine.experiments.tasks.task import Examples, Part, Task
from engine.experiments.tasks.text_sources import digests, parts_of

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, kw_only=True)
class Matching(Task):
    length: int  # of both stretches
    corpora: tuple[str, ...]
    name: str = "matching"
    reads_neighbour: bool = False
    pools: ClassVar[bool] = True
    vocabulary: ClassVar[int] = 256
    classes: ClassVar[int] = 2

    def sources(self) -> Mapping[str, str]:
        return digests(self.corpora)

    def draw(self, count: int, generator: Generator, part: Part = "training") -> Examples:
        rows, answers = [], []
        for _ in range(count):
            matches = int(torch.randint(2, (), generator=generator))
            first = self._document(generator, part)
            second = first if matches else self._document(generator, part, other_than=first)
            rows.append(self._pair(first, second, generator))
            answers.append([matches])
        targets = torch.tensor(answers)
        return Examples(torch.stack(rows).long(), targets, torch.zeros_like(targets))

    def _document(
        self, generator: Generator, part: Part, other_than: Tensor | None = None
    ) -> Tensor:
        while True:
            corpus = _choice(self.corpora, generator)
            found = _choice(_long_documents(corpus, part, self.length), generator)
            if found is not other_than:
                return found

    def _pair(self, first: Tensor, second: Tensor, generator: Generator) -> Tensor:
        """Stretches of the earlier half of one and of the later half of the other."""
        half = self.length // 2
        early = _stretch(first[: len(first) // 2], half, generator)
        late = _stretch(second[len(second) // 2 :], half, generator)
        return torch.cat([early, late])


def _choice(items: Sequence[ItemT], generator: Generator) -> ItemT:
    return items[int(torch.randint(len(items), (), generator=generator))]


def _stretch(document: Tensor, length: int, generator: Generator) -> Tensor:
    start = int(torch.randint(len(document) - length + 1, (), generator=generator))
    return document[start : start + length]


@cache
def _long_documents(corpus: str, part: Part, shortest: int) -> Sequence[Tensor]:
    """The bytes of the documents whose halves have a stretch each."""
    encoded = (document.body.encode() for document in parts_of(corpus)[part])
    found = [
        torch.frombuffer(bytearray(one), dtype=torch.uint8)
        for one in encoded
        if len(one) >= shortest
    ]
    if len(found) < 2:
        raise InvalidInput(
            f"corpus {corpus} has {len(found)} documents of at least {shortest} bytes for "
            f"{part}; matching needs 2",
            code="too_little_text",
            limit=2,
            actual=len(found),
        )
    return found
