"""Divide an open document into nested segments where its subject changes.

Boundaries lie at breaks of the text itself: blank lines, else line ends, else sentence ends. At
each, cohesion says how much the text before and after is about the same subject. On each side there
is a window of tokens; cohesion is the cosine of the means of the two windows, and is low where the
subject changes. It is read twice: from states that have seen the whole document, and from the
vectors of its passages read alone, with windows of the same size and of half of it. How far each
falls below its surroundings, in its own standard deviations, is added up. States alone draw
boundaries to where positions restart, every 512 tokens of the default model.
Headings of the text go before all other places, the outermost first: of a document that has them,
they say where its parts begin better than its states do.
A scale, the tokens of a typical segment, sets the size of the windows and the number of boundaries.
Each scale adds boundaries to those of the coarser one, so segments nest.

The cost is linear: one pass over the states, a few dozen rows for every place and scale, and the
text read once more in passages.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from engine.analysis.cache import ByteCache
from engine.analysis.document_states import states_before
from engine.analysis.open_document import (
    HEADING,
    LINE,
    PARAGRAPH,
    SENTENCE,
    OpenDocument,
)
from engine.analysis.passages import cohesion_of_passages, passage_vectors
from engine.attention_types import Segment, SegmentStart, Structure
from engine.errors import InvalidInput
from engine.model.embedding_model import EmbeddingModel
from engine.steps import Steps
from engine.text.content_tokens import character_span
from engine.types import Span

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

SMALLEST_SCALE = 16
MAX_SCALES = 6
_FINEST_SCALE, _SCALE_STEP, _COARSEST_SHARE = 64, 3, 4
_TOKENS_A_PLACE = 96
"""A kind of break is used if there is one at least this often, else the next weaker kind."""

_BLIND_STEP = 32
"""Tokens between places in a text without any breaks."""

_STRIDE = 64
"""Tokens between two stored sums."""

_TOKENS_A_STEP, _ROWS_A_STEP = 16_384, 4_096
"""Between two pauses: states summed, and states read again around places."""

_FLAT = 1e-9
"""Depths that vary less are rounding."""

_NEAREST = 4
"""Boundaries of a scale are at least scale / _NEAREST tokens apart."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StructurePlan:
    layer: int  # whose input is read
    places: Places  # where boundaries may lie
    scales: tuple[int, ...]  # tokens of a typical segment, coarse to fine
    reads_passages: bool = True  # False to measure what reading passages alone gains


def plan_structure(document: OpenDocument, scales: Sequence[int] | None) -> StructurePlan:
    layer = segmentation_layer(document.model)
    length = document.num_tokens
    chosen = usual_scales(length) if scales is None else _check_scales(scales)
    return StructurePlan(layer=layer, places=places_of(document), scales=chosen)


def segmentation_layer(model: EmbeddingModel) -> int:
    """The layer whose input is read: the last. Its output is trained for the mean of the whole
    text; its input still tells one part from another."""
    return model.info.num_layers - 1


def usual_scales(length: int) -> tuple[int, ...]:
    scales: list[int] = []
    scale = length // _COARSEST_SHARE
    while len(scales) < MAX_SCALES and scale >= _FINEST_SCALE:
        scales.append(scale)
        scale //= _SCALE_STEP
    return tuple(scales) or (max(length // 2, SMALLEST_SCALE),)


def places_of(document: OpenDocument) -> Places:
    """The tokens a segment may begin with; never the first token of the text."""
    length = document.num_tokens
    for kind in (PARAGRAPH, LINE, SENTENCE):
        places = np.flatnonzero(document.breaks >= kind)
        if len(places) * _TOKENS_A_PLACE >= length:
            return _inside(places, document)
    if len(places):
        return _inside(places, document)
    return _inside(np.arange(_BLIND_STEP, length, _BLIND_STEP), document)


def _inside(places: Places, document: OpenDocument) -> Places:
    tokenizer = document.model.tokenizer
    last = document.num_tokens - tokenizer.num_suffix
    return places[(places > tokenizer.num_prefix) & (places < last)]


def _check_scales(scales: Sequence[int]) -> tuple[int, ...]:
    if not 1 <= len(scales) <= MAX_SCALES:
        raise InvalidInput(
            f"scales must be 1 to {MAX_SCALES} numbers, got {len(scales)}",
            code="invalid_scales",
            param="scales",
            limit=MAX_SCALES,
            actual=len(scales),
        )
    for scale in scales:
        if scale < SMALLEST_SCALE:
            raise InvalidInput(
                f"scales must be at least {SMALLEST_SCALE} tokens, got {scale}",
                code="invalid_scales",
                param="scales",
                limit=SMALLEST_SCALE,
                actual=scale,
            )
    return tuple(sorted(set(scales), reverse=True))


@torch.no_grad()
def structure_steps(
    document: OpenDocument, plan: StructurePlan, cache: ByteCache
) -> Steps[Structure]:
    tokenizer = document.model.tokenizer
    content = Span(tokenizer.num_prefix, document.num_tokens - tokenizer.num_suffix)
    states = yield from states_before(document, plan.layer, cache)
    sums = yield from sums_of(states)
    places = torch.from_numpy(plan.places).to(states.device)
    found = yield from cohesion(sums, places, plan.scales, content)
    edges = [content.start, *plan.places.tolist(), content.end]
    is_divided = plan.reads_passages and len(plan.places) > 0
    alone = (yield from passage_vectors(document, edges)) if is_divided else None
    strengths = document.breaks[plan.places].astype(np.float64)
    above_headings = (strengths - HEADING + 1).clip(min=0)
    levels: list[list[int]] = []
    for scale, values in zip(plan.scales, found.cpu().numpy(), strict=True):
        depth = _standardised(depths(values))
        if alone is not None:
            for reach in (scale / 2, scale):
                of_passages = cohesion_of_passages(alone, edges, reach)
                depth += _standardised(depths(of_passages))
        depth += above_headings * (depth.max(initial=0) + 1)
        given = levels[-1] if levels else []
        levels.append(
            choose_boundaries(plan.places, depth, scale=scale, content=content, given=given)
        )
    return Structure(
        model=document.model.name,
        document=document.handle,
        tokens=document.num_tokens,
        layer=plan.layer,
        scales=plan.scales,
        segments=nested(document, content, levels),
    )


class Sums:
    """Sums of states [T, W] from the first token up to any other. It stores one for each stride."""

    def __init__(self, states: Tensor, by_stride: Tensor) -> None:
        self._states = states
        self._up_to = F.pad(by_stride.cumsum(0), (0, 0, 1, 0))  # [strides + 1, W]

    def up_to(self, tokens: Tensor) -> Tensor:
        """The sum over all tokens before each of these: [places, W] float64."""
        last = tokens // _STRIDE
        beyond = last.unsqueeze(1) * _STRIDE + torch.arange(_STRIDE, device=tokens.device)
        counts = beyond < tokens.unsqueeze(1)
        rows = self._states[beyond.clamp_max(len(self._states) - 1)].double()  # [P, stride, W]
        return self._up_to[last] + torch.einsum("ps,psw->pw", counts.double(), rows)


def sums_of(states: Tensor) -> Steps[Sums]:
    parts = []
    for some in torch.split(states, _TOKENS_A_STEP):
        padded = F.pad(some, (0, 0, 0, -len(some) % _STRIDE))
        by_stride = padded.view(-1, _STRIDE, states.shape[1])
        parts.append(by_stride.sum(1, dtype=torch.float64))
        yield
    return Sums(states, torch.cat(parts))


def cohesion(sums: Sums, places: Tensor, reaches: Sequence[int], content: Span) -> Steps[Tensor]:
    """At each place, with windows of at most this many tokens on either side: [reaches, places]."""
    found = [places.new_empty(len(reaches), 0, dtype=torch.float64)]
    looks_a_place = 1 + 2 * len(reaches)
    # A window ends with the content; a larger reach would overflow 64 bits.
    furthest = max(content.end - content.start, 0)
    within = [min(reach, furthest) for reach in reaches]
    for some in torch.split(places, max(1, _ROWS_A_STEP // (_STRIDE * looks_a_place))):
        middle = sums.up_to(some)
        by_reach = []
        for reach in within:
            before = middle - sums.up_to((some - reach).clamp_min(content.start))
            after = sums.up_to((some + reach).clamp_max(content.end)) - middle
            by_reach.append(torch.cosine_similarity(before, after, dim=1))
        found.append(torch.stack(by_reach))
        yield
    return torch.cat(found, dim=1)


def depths(cohesion: Floats) -> Floats:
    """How far cohesion rises on both sides of each place before it falls again."""
    return _rise(cohesion) + _rise(cohesion[::-1])[::-1]


def _standardised(depth: Floats) -> Floats:
    spread = depth.std() if len(depth) else 0.0
    return depth / spread if spread > _FLAT else np.zeros_like(depth)


def _rise(cohesion: Floats) -> Floats:
    """From each place to the nearest peak on its left."""
    rises = np.zeros(len(cohesion))
    peak = -np.inf
    for index, value in enumerate(cohesion.tolist()):
        rising_from_left = index == 0 or value <= cohesion[index - 1]
        peak = max(peak if rising_from_left else value, value)
        rises[index] = peak - value
    return rises


def choose_boundaries(
    places: Places, depth: Floats, *, scale: int, content: Span, given: Sequence[int] = ()
) -> list[int]:
    """The given boundaries and the deepest places, as many as give segments of this scale."""
    wanted = round((content.end - content.start) / scale) - 1
    taken = [content.start, *sorted(given), content.end]
    for index in np.argsort(-depth, kind="stable").tolist():
        if len(taken) - 2 >= wanted or depth[index] <= 0:
            break
        place = int(places[index])
        at = bisect_left(taken, place)
        nearest = min(place - taken[at - 1], taken[at] - place)
        if nearest * _NEAREST >= scale:
            taken.insert(at, place)
    return taken[1:-1]


def nested(
    document: OpenDocument, content: Span, levels: Sequence[Sequence[int]]
) -> tuple[Segment, ...]:
    """Segments between the boundaries of the first level, divided by those of the next levels. A
    text without boundaries is one segment."""
    if content.end <= content.start:  # a text of nothing but spaces
        return ()
    return _within(document, content, levels, 0) or (_segment(document, content, 0, ()),)


def _within(
    document: OpenDocument, whole: Span, levels: Sequence[Sequence[int]], level: int
) -> tuple[Segment, ...]:
    if level == len(levels):
        return ()
    places = levels[level]
    inner = places[bisect_right(places, whole.start) : bisect_left(places, whole.end)]
    if not inner:
        return _within(document, whole, levels, level + 1)
    edges = [whole.start, *inner, whole.end]
    spans = [Span(start, end) for start, end in pairwise(edges)]
    return tuple(
        _segment(document, span, level, _within(document, span, levels, level + 1))
        for span in spans
    )


def _segment(
    document: OpenDocument, span: Span, level: int, children: tuple[Segment, ...]
) -> Segment:
    return Segment(
        level=level,
        tokens=span,
        characters=character_span(document.offsets, span),
        begins=_how_it_begins(document, span.start),
        children=children,
    )


def _how_it_begins(document: OpenDocument, token: int) -> SegmentStart:
    if document.breaks[token] >= HEADING:
        return "heading"
    return "text" if token <= document.model.tokenizer.num_prefix else "vectors"


def spans_at(level: int, segments: Sequence[Segment]) -> list[Span]:
    """The tokens of every segment of this level, in their order. A segment that is not divided
    further counts for the levels below it."""
    spans: list[Span] = []
    for segment in segments:
        if segment.level < level and segment.children:
            spans += spans_at(level, segment.children)
        else:
            spans.append(segment.tokens)
    return spans
