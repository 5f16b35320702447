"""The rows of a document whose passages are read together, each between special tokens of its own.

What is in no passage is read too, after them: the passages are to know of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from engine.text.tokenizer import TextTokenizer
from engine.types import Ids, Span

_LEAST_ROOM = 64
"""Tokens that a part of a passage has at least, however long the prompt before each is."""


@dataclass(frozen=True)
class LinkedRows:
    """The parts of passages, one after the other."""

    ids: Ids  # [rows]
    bounds: tuple[int, ...]  # of the parts
    passages: tuple[Span, ...]  # the rows of each passage
    around: tuple[int, int]  # tokens before and after each part's own


def linked_rows(
    ids: Ids,
    passages: Sequence[Span],
    content: Span,
    tokenizer: TextTokenizer,
    *,
    longest: int,
    prompt: Ids,
) -> LinkedRows:
    """`passages` are ranges of the document's ids, in any order, and may overlap. One that is
    longer than `longest`, with what is put around it, is read in equal parts."""
    before = np.concatenate([tokenizer.prefix_ids, prompt])
    after = tokenizer.suffix_ids
    num_around = len(before) + len(after)
    room = max(longest - num_around, _LEAST_ROOM)
    pieces: list[Ids] = []
    bounds, rows = [0], list[Span]()
    for passage in (*passages, *_uncovered(passages, content)):
        first = bounds[-1]
        for part in _parts(passage, room):
            pieces += [before, ids[part.start : part.end], after]
            bounds.append(bounds[-1] + num_around + part.end - part.start)
        rows.append(Span(first, bounds[-1]))
    return LinkedRows(
        ids=np.concatenate(pieces).astype(np.int32),
        bounds=tuple(bounds),
        passages=tuple(rows[: len(passages)]),
        around=(len(before), len(after)),
    )


def num_linked(passages: Sequence[Span], content: Span) -> int:
    """Tokens of the passages and of what is in none of them, each time that they are read."""
    every = (*passages, *_uncovered(passages, content))
    return sum(end - start for start, end in every)


def _parts(passage: Span, room: int) -> Iterator[Span]:
    start, end = passage
    count = max(1, -(-(end - start) // room))
    ends = [start + (end - start) * (at + 1) // count for at in range(count)]
    yield from (Span(first, last) for first, last in zip([start, *ends], ends, strict=False))


def _uncovered(passages: Sequence[Span], content: Span) -> Iterator[Span]:
    """The ranges of the content that are in no passage, in order."""
    reached = content.start
    for start, end in sorted(passages):
        if start > reached:
            yield Span(reached, start)
        reached = max(reached, end)
    if content.end > reached:
        yield Span(reached, content.end)
