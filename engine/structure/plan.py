"""Where boundaries may lie and at which scales they are looked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidInput
from engine.maps.document import LINE, PARAGRAPH, SENTENCE, OpenDocument
from engine.model.embedding_model import EmbeddingModel

SMALLEST_SCALE = 16
MAX_SCALES = 6
_FINEST_SCALE, _SCALE_STEP, _COARSEST_SHARE = 64, 3, 4
_TOKENS_A_PLACE = 96
"""Blank lines alone are used where there is one at least this often, else lines, else sentences."""

_BLIND_STEP = 32
"""Tokens between places in a text that has not even sentences."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StructurePlan:
    layer: int  # whose input is looked at
    places: NDArray[np.int64]
    scales: tuple[int, ...]  # tokens of a typical segment, coarse to fine


def plan_structure(document: OpenDocument, scales: Sequence[int] | None) -> StructurePlan:
    layer = layer_of(document.model)
    length = document.num_tokens
    chosen = usual_scales(length) if scales is None else _checked(scales)
    return StructurePlan(layer=layer, places=places_of(document), scales=chosen)


def layer_of(model: EmbeddingModel) -> int:
    """The layer whose input is looked at: the last. What it gives is made for the mean of the whole
    text; what it reads still tells one part from another."""
    return model.info.num_layers - 1


def usual_scales(length: int) -> tuple[int, ...]:
    scales: list[int] = []
    scale = length // _COARSEST_SHARE
    while len(scales) < MAX_SCALES and scale >= _FINEST_SCALE:
        scales.append(scale)
        scale //= _SCALE_STEP
    return tuple(scales) or (max(length // 2, SMALLEST_SCALE),)


def places_of(document: OpenDocument) -> NDArray[np.int64]:
    """The tokens a segment may begin with; never the first token of the text."""
    length = document.num_tokens
    for kind in (PARAGRAPH, LINE, SENTENCE):
        places = np.flatnonzero(document.breaks >= kind)
        if len(places) * _TOKENS_A_PLACE >= length:
            return _inside(places, document)
    if len(places):
        return _inside(places, document)
    return _inside(np.arange(_BLIND_STEP, length, _BLIND_STEP), document)


def _inside(places: NDArray[np.int64], document: OpenDocument) -> NDArray[np.int64]:
    tokenizer = document.model.tokenizer
    last = document.num_tokens - tokenizer.num_suffix
    return places[(places > tokenizer.num_prefix) & (places < last)]


def _checked(scales: Sequence[int]) -> tuple[int, ...]:
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
