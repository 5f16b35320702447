"""A map, from an open document to the answer, with pauses on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from engine.diagnostics.view import HeadView
from engine.layer_states import head_view
from engine.maps.cache import ByteCache
from engine.maps.document import OpenDocument
from engine.maps.lens import HeadLens
from engine.maps.links import find_links
from engine.maps.pauses import PAUSE, InSteps, Pause
from engine.maps.plan import MapPlan
from engine.maps.topics import topics_of
from engine.maps.walk import layer_of
from engine.types import AttentionMap, Link, Topic


@torch.no_grad()
def map_steps(
    document: OpenDocument, plan: MapPlan, cache: ByteCache
) -> Iterator[Pause | AttentionMap]:
    """Pauses, and at the end the map."""
    lens = yield from open_head(document, plan.layer, plan.head, cache)
    device = lens.view.q.device
    sums = yield from lens.sums(plan.row_edges.to(device), plan.column_edges.to(device))
    links: tuple[Link, ...] = ()
    if plan.links:
        links = yield from find_links(lens, plan)
    topics: tuple[Topic, ...] | None = None
    if plan.topics and lens.prefixes is not None:
        topics = topics_of(lens, document, count=plan.topics, tokens=plan.topic_tokens)
    yield _attention_map(document, plan, lens, sums, links, topics)


def open_head(document: OpenDocument, layer: int, head: int, cache: ByteCache) -> InSteps[HeadLens]:
    key = ("lens", document.handle, layer, head)
    lens: HeadLens | None = cache.get(key)
    if lens is None:
        step = yield from layer_of(document, layer, cache)
        view = head_view(document.model, step)
        lens = HeadLens.of(_alone(view, head))
        cache.put(key, lens, lens.num_bytes)
        yield PAUSE
    return lens


def _alone(view: HeadView, head: int) -> HeadView:
    """One head's queries and keys, without the memory of the other heads and of all else."""
    one = replace(view, v=None, x=None, out=None).only([head])
    return replace(one, q=one.q.clone(), k=one.k.clone())


def _attention_map(
    document: OpenDocument,
    plan: MapPlan,
    lens: HeadLens,
    sums: Tensor,
    links: tuple[Link, ...],
    topics: tuple[Topic, ...] | None,
) -> AttentionMap:
    heights = plan.row_edges.diff().to(sums).unsqueeze(1)
    return AttentionMap(
        model=document.model.name,
        document=document.handle,
        tokens=document.num_tokens,
        layer=plan.layer,
        head=plan.head,
        attention=lens.view.attention,
        rows=plan.rows,
        columns=plan.columns,
        row_edges=tuple(plan.row_edges.tolist()),
        column_edges=tuple(plan.column_edges.tolist()),
        mass=(sums / heights).cpu().numpy(),
        links=links,
        topics=topics,
    )
