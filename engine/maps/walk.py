"""The encoder walked through an open document, and remembered for the next question about it."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.maps.cache import ByteCache
from engine.maps.document import OpenDocument
from engine.maps.pauses import PAUSE, InSteps


def queries_and_keys(
    document: OpenDocument, layer: int, cache: ByteCache
) -> InSteps[tuple[Tensor, Tensor]]:
    """q, k of all heads of one layer: [T, H, D].

    What every layer reads is kept, if all of it fits, so that the next head is no new walk.
    """
    encoder = document.model.encoder
    kept: Tensor | None = cache.get(("states", document.handle, layer))
    bounds = [0, document.num_tokens]
    if kept is not None:
        return encoder.queries_and_keys(layer, kept, bounds)
    ids = torch.from_numpy(document.ids).long().to(encoder.device)
    states = encoder.first_states(ids, bounds)
    keeps = states.nbytes * len(encoder.attention) <= cache.max_bytes
    taps: list[tuple[Tensor, Tensor]] = []
    walk = encoder.walk(ids, bounds, tap=lambda _, q, k, v: taps.append((q, k)))
    for index, after in enumerate(walk):
        seen = taps.pop()
        if keeps:
            cache.put(("states", document.handle, index), states, states.nbytes)
        states = after
        if index == layer:
            found = seen
            if not keeps:
                break
        yield PAUSE
    return found
