"""One training step of an encoder's layers, part by part.

Forward, mean-squared loss against zero, gradients of every layer's weights, and a step of plain
gradient descent on copies that are dropped afterwards. Each layer is differentiated by itself, from
the last to the first, which gives the same gradients as all at once and lets other work run between
layers. Embedding tables are left as they are: their gradient does not depend on the attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from engine.model.encoder import Attend, Encoder
from engine.model.layers import Layer, layers_of
from engine.model.positions import lengths_of_rows, positions_in_sequences
from engine.model.weights import Affine, EncoderWeights, LayerWeights


class _Done(NamedTuple):
    """A layer's forward pass, kept until its backward pass."""

    entered: Tensor  # [T, W] a leaf
    left: Tensor  # [T, W]


class TrainableLayers:
    """Copies of an encoder's layers that can be trained. Made once, used for many steps."""

    def __init__(
        self, encoder: Encoder, attention: Sequence[Attend], *, rate: float = 1e-6
    ) -> None:
        weights = trainable(encoder.weights)
        self.parameters = [parameters_of(layer) for layer in weights.layers]
        self._encoder = encoder
        self._attention = tuple(attention)
        self._layers = layers_of(weights)
        self._rate = rate

    def step(self, ids: Tensor, bounds: Sequence[int]) -> Iterator[None]:
        """One step; stops after every layer, on the way up and on the way down."""
        done = []
        x = self._embedded(ids, bounds)
        for layer, attend in zip(self._layers, self._attention, strict=True):
            done.append(self._forward(layer, attend, x, bounds))
            x = done[-1].left.detach()
            yield
        gradient = 2 * x / x.numel()
        for parameters in reversed(self.parameters):
            gradient = self._backward(done.pop(), parameters, gradient)
            yield

    @torch.no_grad()
    def _embedded(self, ids: Tensor, bounds: Sequence[int]) -> Tensor:
        encoder = self._encoder
        lengths = lengths_of_rows(bounds, encoder.device) if encoder.reads_lengths else 0
        return encoder.embed(ids, positions_in_sequences(bounds, encoder.device), lengths)

    @torch.enable_grad()
    def _forward(self, layer: Layer, attend: Attend, x: Tensor, bounds: Sequence[int]) -> _Done:
        entered = x.detach().requires_grad_()
        cu_seqlens = torch.tensor(bounds, dtype=torch.int32)
        q, k, v = layer.project(entered, positions_in_sequences(bounds, x.device))
        return _Done(entered, layer.finish(attend(q, k, v, cu_seqlens).flatten(1), entered))

    def _backward(self, done: _Done, parameters: Sequence[Tensor], gradient: Tensor) -> Tensor:
        """Updates a layer's parameters and returns the gradient of what entered it."""
        found = torch.autograd.grad(done.left, [done.entered, *parameters], gradient)
        with torch.no_grad():
            for parameter, of_parameter in zip(parameters, found[1:], strict=True):
                parameter -= self._rate * of_parameter
        return found[0]


def trainable(weights: EncoderWeights) -> EncoderWeights:
    """A copy whose layers take part in differentiation."""
    return replace(weights, layers=tuple(map(_trainable_layer, weights.layers)))


def _trainable_layer(layer: LayerWeights) -> LayerWeights:
    copies = {name: _trainable_affine(affine) for name, affine in _affines(layer)}
    return replace(layer, **copies)  # type: ignore[arg-type]  # each under its own name


def _trainable_affine(affine: Affine) -> Affine:
    weight = affine.weight.to_dense() if affine.weight.is_mkldnn else affine.weight.clone()
    bias = None if affine.bias is None else affine.bias.clone().requires_grad_()
    return Affine(weight.requires_grad_(), bias)


def parameters_of(layer: LayerWeights) -> list[Tensor]:
    """Every tensor of a layer."""
    return [part for _, affine in _affines(layer) for part in affine if part is not None]


def _affines(layer: LayerWeights) -> Iterator[tuple[str, Affine]]:
    for field in fields(layer):
        value = getattr(layer, field.name)
        if isinstance(value, Affine):
            yield field.name, value
