"""Whether a record's tensors have the shapes that its model gives them.

Anyone can make a record, with a checksum that fits. Tensors of other shapes would fail on the
device, as if the server were at fault, or be broadcast to wrong numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from engine.living.staleness import SINK_DIRECTIONS, VALUE_DIRECTIONS
from engine.model.embedding_model import EmbeddingModel

_ANY = -1
_NO_LAYERS = 0, 1, 1
Shape = tuple[int, ...]


def check_shapes(tensors: Mapping[str, Tensor], model: EmbeddingModel, num_segments: int) -> None:
    """Raises ValueError, and KeyError if a tensor is missing."""
    for name, shape in _shapes(model, num_segments):
        if not tensors[name].is_floating_point() or not _fits(tensors[name], shape):
            raise ValueError(f"{name} is not of this model")
    chunks = tensors["chunks"]
    if chunks.dtype is not torch.int64 or not _fits(chunks, (_ANY, 4)):
        raise ValueError("chunks are not bounds of tokens and characters")
    _check_states(tensors, model, num_segments)
    for name, shape in _shapes_of_views(tensors, model):
        if tensors[name].shape != (len(tensors["view.share"]), *shape):
            raise ValueError(f"{name} is not of this record")


def _fits(tensor: Tensor, shape: Shape) -> bool:
    return len(shape) == tensor.dim() and all(
        own in (_ANY, found) for own, found in zip(shape, tensor.shape, strict=True)
    )


def _shapes(model: EmbeddingModel, num_segments: int) -> Iterator[tuple[str, Shape]]:
    weights = model.encoder.weights
    width, head = weights.width, (weights.num_heads, weights.head_dim)
    yield from ((name, (_ANY, width)) for name in ("opening", "late", "alone"))
    yield from ((name, (num_segments, width)) for name in ("flat", "rising"))
    yield "view.share", (_ANY,)
    for layer in range(len(weights.layers)):
        for end in ("first", "last"):
            yield from ((f"{end}.{part}.{layer}", (_ANY, *head)) for part in "kv")


def _shapes_of_views(
    tensors: Mapping[str, Tensor], model: EmbeddingModel
) -> Iterator[tuple[str, Shape]]:
    """What a view sketches of the layers that have a state, and of those that have sinks."""
    weights = model.encoder.weights
    layers = range(len(weights.layers))
    num_states = sum(f"value.{layer}" in tensors for layer in layers)
    head = weights.num_heads, weights.head_dim
    yield "view.mass", (num_states, *head) if num_states else _NO_LAYERS
    yield "view.values", (num_states, *head, VALUE_DIRECTIONS) if num_states else _NO_LAYERS
    counts = [len(tensors[f"first.k.{one}"]) + len(tensors[f"last.k.{one}"]) for one in layers]
    found = [count for count in counts if count]
    sinks = (len(found), 2, weights.num_heads, *found[:1], SINK_DIRECTIONS)
    yield "view.sinks", sinks if found else _NO_LAYERS


def _check_states(tensors: Mapping[str, Tensor], model: EmbeddingModel, num_segments: int) -> None:
    """Layers without a state have neither tensor."""
    weights = model.encoder.weights
    mass = num_segments, weights.num_heads, weights.head_dim
    for layer in range(len(weights.layers)):
        if f"value.{layer}" in tensors or f"log_mass.{layer}" in tensors:
            found = tensors[f"log_mass.{layer}"].shape, tensors[f"value.{layer}"].shape
            if found != (mass, (*mass, weights.head_dim)):
                raise ValueError(f"the states of layer {layer} are not of this model")
