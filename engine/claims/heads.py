"""A real document's heads: what random matrices cannot stand for."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from engine.claims.base import HeadSample
from engine.model.embedding_model import EmbeddingModel
from engine.prepare import Prepared
from engine.runner import pack

MAX_TOKENS = 256
"""Claims look at whole matrices, so they read the beginning of a document."""


def document_start() -> str:
    """The document that is looked at when none is given: real English that Python brings along."""
    from pydoc_data.topics import topics

    return topics["execmodel"]


def document_ids(text: Prepared) -> Prepared:
    """The beginning of a prepared document, as far as claims read it."""
    return Prepared(
        ids=text.ids[:MAX_TOKENS],
        spans=text.spans,
        chunks=(),
        num_tokens=text.num_tokens,
        dropped=text.dropped,
    )


@torch.no_grad()
def head_samples(
    model: EmbeddingModel, text: Prepared, *, every_head: bool = False
) -> Iterator[tuple[HeadSample, ...]]:
    """Layer by layer, one head of each (another one in each layer), or all of them."""
    ids, bounds = pack([document_ids(text)], model.encoder.device)
    seen: list[tuple[Tensor, Tensor]] = []
    states = model.encoder.walk(ids, bounds, tap=lambda _, q, k, v: seen.append((q, k)))
    num_heads = model.info.num_heads
    for layer, _ in enumerate(states):
        q, k = (rows.double().cpu() for rows in seen.pop())
        heads = range(num_heads) if every_head else (layer % num_heads,)
        yield tuple(
            HeadSample(layer=layer, head=head, q=q[:, head], k=k[:, head]) for head in heads
        )
