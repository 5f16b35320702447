"""A document's structure, from an open document to the answer, with pauses on the way."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.maps.cache import ByteCache
from engine.maps.document import OpenDocument
from engine.maps.pauses import Pause
from engine.maps.walk import states_before
from engine.structure.cohesion import cohesion, sums_of
from engine.structure.plan import StructurePlan
from engine.structure.segments import choose_boundaries, depths, nested
from engine.types import Span, Structure


@torch.no_grad()
def structure_steps(
    document: OpenDocument, plan: StructurePlan, cache: ByteCache
) -> Iterator[Pause | Structure]:
    """Pauses, and at the end the structure."""
    tokenizer = document.model.tokenizer
    content = Span(tokenizer.num_prefix, document.num_tokens - tokenizer.num_suffix)
    states = yield from states_before(document, plan.layer, cache)
    sums = yield from sums_of(states)
    places = torch.from_numpy(plan.places).to(states.device)
    found = yield from cohesion(sums, places, plan.scales, content)
    levels: list[list[int]] = []
    for scale, values in zip(plan.scales, found.cpu().numpy(), strict=True):
        depth = depths(values)
        given = levels[-1] if levels else []
        levels.append(
            choose_boundaries(plan.places, depth, scale=scale, content=content, given=given)
        )
    yield Structure(
        model=document.model.name,
        document=document.handle,
        tokens=document.num_tokens,
        layer=plan.layer,
        scales=plan.scales,
        segments=nested(document, content, levels),
    )
