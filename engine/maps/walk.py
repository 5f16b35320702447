"""The encoder walked through an open document, and remembered for the next question about it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from torch import Tensor

from engine.layer_states import LayerStep, diagnosis_bytes, layer_steps, projection_bytes
from engine.maps.cache import ByteCache
from engine.maps.document import OpenDocument
from engine.maps.lens import lens_bytes
from engine.maps.pauses import PAUSE, InSteps


def open_layer_steps(document: OpenDocument, cache: ByteCache) -> Iterator[LayerStep | None]:
    """The layers in their order, and None wherever others may have a turn.

    What each layer reads is kept, if all of it fits, so that the next question is no new walk.
    """
    if kept := _all_kept(document, cache):
        # Held from here on: others may take their place in the cache before the last is read.
        for index, (before, after) in enumerate(pairwise(kept)):
            yield _step(document, index, before, after)
        return
    num_layers = document.model.info.num_layers
    for step in layer_steps(document.model, document.prepared):
        if step is not None:
            _keep(document, step.index, step.before, cache)
            if step.index + 1 == num_layers:
                _keep(document, num_layers, step.after.clone(), cache)
        yield step


def walk_bytes(document: OpenDocument, cache: ByteCache) -> int:
    """What a walk holds at once: where every layer's states are kept, one layer's projections."""
    of_walk = projection_bytes if _all_kept(document, cache) else diagnosis_bytes
    return of_walk(document.model.encoder, document.num_tokens)


def layer_of(document: OpenDocument, layer: int, cache: ByteCache) -> InSteps[LayerStep]:
    """One layer of the document."""
    if (found := _step_from(document, layer, cache)) is not None:
        return found
    for step in open_layer_steps(document, cache):
        if step is not None and step.index == layer:
            found = step
            if not _can_keep(document, step.before, cache):
                break
        yield PAUSE
    assert found is not None, "a plan holds layers that exist"
    return found


def states_before(document: OpenDocument, layer: int, cache: ByteCache) -> InSteps[Tensor]:
    """What a layer of the document reads: [T, W]."""
    if (known := _kept(document, layer, cache)) is not None:
        return known
    return (yield from layer_of(document, layer, cache)).before


def _step_from(document: OpenDocument, layer: int, cache: ByteCache) -> LayerStep | None:
    """A layer from what is kept of it."""
    before, after = (_kept(document, index, cache) for index in (layer, layer + 1))
    return None if before is None or after is None else _step(document, layer, before, after)


def _step(document: OpenDocument, layer: int, before: Tensor, after: Tensor) -> LayerStep:
    q, k, v = document.model.encoder.projected(layer, before, [0, document.num_tokens])
    return LayerStep(index=layer, before=before, after=after, q=q, k=k, v=v)


def _all_kept(document: OpenDocument, cache: ByteCache) -> list[Tensor]:
    """What every layer reads, and what the last one leaves; nothing unless all of it is kept."""
    num_layers = document.model.info.num_layers
    found = [_kept(document, index, cache) for index in range(num_layers + 1)]
    kept = [states for states in found if states is not None]
    return kept if len(kept) == len(found) else []


def _kept(document: OpenDocument, index: int, cache: ByteCache) -> Tensor | None:
    states: Tensor | None = cache.get(("states", document.handle, index))
    return states


def _keep(document: OpenDocument, index: int, states: Tensor, cache: ByteCache) -> None:
    if _can_keep(document, states, cache):
        cache.put(("states", document.handle, index), states, states.nbytes)


def _can_keep(document: OpenDocument, states: Tensor, cache: ByteCache) -> bool:
    """Whether the states of all layers fit, beside a lens: one would drive the other out."""
    of_states = states.nbytes * (document.model.info.num_layers + 1)
    of_lens = lens_bytes(len(states), document.model.encoder.weights.head_dim, states.dtype)
    return of_states + of_lens <= cache.max_derived_bytes
