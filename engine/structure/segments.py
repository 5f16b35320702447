"""From cohesion at every place to nested segments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from engine.maps.document import OpenDocument
from engine.text.passages import character_span
from engine.types import Segment, Span

_NEAREST = 4  # boundaries of a scale are at least scale / _NEAREST tokens apart

Floats = NDArray[np.float64]
Places = NDArray[np.int64]


def depths(cohesion: Floats) -> Floats:
    """How far cohesion climbs on both sides of each place until it falls again."""
    return _climb(cohesion) + _climb(cohesion[::-1])[::-1]


def _climb(cohesion: Floats) -> Floats:
    """From each place to the nearest peak on its left."""
    climbs = np.zeros(len(cohesion))
    peak = -np.inf
    for index, value in enumerate(cohesion.tolist()):
        rising_from_left = index == 0 or value <= cohesion[index - 1]
        peak = max(peak if rising_from_left else value, value)
        climbs[index] = peak - value
    return climbs


def choose_boundaries(
    places: Places, depth: Floats, *, scale: int, content: Span, given: Sequence[int] = ()
) -> list[int]:
    """The deepest places, as many as make segments of this scale, besides those given."""
    wanted = round((content.end - content.start) / scale) - 1
    chosen = sorted(given)
    taken = [content.start, *chosen, content.end]
    for index in np.argsort(-depth, kind="stable").tolist():
        if len(chosen) >= wanted or depth[index] <= 0:
            break
        place = int(places[index])
        nearest = min(abs(place - other) for other in taken)
        if nearest * _NEAREST >= scale:
            chosen.append(place)
            taken.append(place)
    return sorted(chosen)


def nested(
    document: OpenDocument, content: Span, levels: Sequence[Sequence[int]]
) -> tuple[Segment, ...]:
    """Segments of the first level's boundaries, each holding those of the next."""
    if content.end <= content.start:  # a text of nothing but spaces
        return ()
    return _within(document, content, levels, 0)


def _within(
    document: OpenDocument, whole: Span, levels: Sequence[Sequence[int]], level: int
) -> tuple[Segment, ...]:
    if level == len(levels):
        return ()
    inner = [place for place in levels[level] if whole.start < place < whole.end]
    if not inner and level + 1 < len(levels):
        return _within(document, whole, levels, level + 1)
    if not inner and level:
        return ()
    edges = [whole.start, *inner, whole.end]
    spans = [Span(start, end) for start, end in pairwise(edges)]
    return tuple(
        Segment(
            level=level,
            tokens=span,
            characters=character_span(document.offsets, span),
            children=_within(document, span, levels, level + 1),
        )
        for span in spans
    )


def spans_at(level: int, segments: Sequence[Segment]) -> list[Span]:
    """The tokens of every segment of this level, in their order. One without parts of that level
    stands for itself."""
    spans: list[Span] = []
    for segment in segments:
        if segment.level < level and segment.children:
            spans += spans_at(level, segment.children)
        else:
            spans.append(segment.tokens)
    return spans
