"""A document's structure, from an open document to the answer, with pauses on the way."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine.diagnose import head_view
from engine.maps.cache import ByteCache
from engine.maps.document import OpenDocument
from engine.maps.lens import HeadLens
from engine.maps.pauses import InSteps, Pause
from engine.maps.walk import queries_and_keys
from engine.structure.cohesion import cohesion
from engine.structure.plan import StructurePlan
from engine.structure.segments import Floats, choose_boundaries, depths, nested
from engine.types import Span, Structure

_WINDOWS_A_SCALE = (0.5, 1.0)
_NARROWEST, _WIDEST = 96, 4_096


@torch.no_grad()
def structure_steps(
    document: OpenDocument, plan: StructurePlan, cache: ByteCache
) -> Iterator[Pause | Structure]:
    """Pauses, and at the end the structure."""
    tokenizer = document.model.tokenizer
    content = Span(tokenizer.num_prefix, document.num_tokens - tokenizer.num_suffix)
    levels: list[list[int]] = []
    by_scale = yield from cohesions(document, plan, cache)
    for scale, values in zip(plan.scales, by_scale, strict=True):
        given = levels[-1] if levels else []
        levels.append(
            choose_boundaries(
                plan.places, depths(values), scale=scale, content=content, given=given
            )
        )
    yield Structure(
        model=document.model.name,
        document=document.handle,
        tokens=document.num_tokens,
        layer=plan.layer,
        scales=plan.scales,
        segments=nested(document, content, levels),
    )


def cohesions(
    document: OpenDocument, plan: StructurePlan, cache: ByteCache
) -> InSteps[list[Floats]]:
    """The cohesion of all heads at every place, for each scale."""
    q, k = yield from queries_and_keys(document, plan.layer, cache)
    view = head_view(document.model.encoder.attention[plan.layer], q, k)
    places = torch.from_numpy(plan.places).to(q.device)
    totals = torch.zeros(len(plan.scales), len(places), dtype=torch.float64, device=q.device)
    for head in range(view.num_heads):
        lens = HeadLens.of(view.only([head]))
        for index, scale in enumerate(plan.scales):
            values = yield from cohesion(lens, places, widths_of(scale))
            totals[index] += values / view.num_heads
    return list(totals.cpu().numpy())


def widths_of(scale: int) -> tuple[int, ...]:
    """The windows on both sides of a place that tell about segments of this size."""
    widths = (min(max(round(share * scale), _NARROWEST), _WIDEST) for share in _WINDOWS_A_SCALE)
    return tuple(dict.fromkeys(widths))
