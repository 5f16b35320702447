"""Cuts a text into whole sentences up to a number of characters."""

from __future__ import annotations

from collections.abc import Iterator

from engine.errors import InvalidInput
from engine.text.sentences import sentences
from engine.types import Span


def pieces(text: str, max_characters: int) -> list[Span]:
    """As many whole sentences as fit, again and again. A sentence that is longer is cut at white
    space, or within a word if it has none.

    A piece reaches to the next one, white space included, as far as it fits. None is only white
    space.
    """
    if max_characters < 1:
        raise InvalidInput(
            f"max_characters must be at least 1, got {max_characters}",
            param="max_characters",
            limit=1,
            actual=max_characters,
        )
    found = list(_packed(text, max_characters))
    ends = [*(span.start for span in found[1:]), len(text)]
    return [
        Span(span.start, min(end, span.start + max_characters))
        for span, end in zip(found, ends, strict=False)  # without any piece, one end is left
    ]


def _packed(text: str, most: int) -> Iterator[Span]:
    """Pieces without the white space around them."""
    start = end = 0
    for sentence in sentences(text):
        for part in _parts(text, sentence, most):
            if end > start and part.end - start <= most:
                end = part.end
                continue
            if end > start:
                yield Span(start, end)
            start, end = part
    if end > start:
        yield Span(start, end)


def _parts(text: str, sentence: Span, most: int) -> Iterator[Span]:
    start, end = sentence
    while end - start > most:
        # The character after the limit may be the white space to cut at.
        cut = next(
            (at for at in range(start + most, start, -1) if text[at].isspace()), start + most
        )
        yield Span(start, _end_of_text(text, start, cut))
        start = cut
        while text[start].isspace():  # it ends with the sentence, at the latest
            start += 1
    yield Span(start, end)


def _end_of_text(text: str, start: int, end: int) -> int:
    while end > start + 1 and text[end - 1].isspace():
        end -= 1
    return end
