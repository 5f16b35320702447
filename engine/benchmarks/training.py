"""One training step of an encoder's layers, part by part.

Forward, mean-squared loss against zero, gradients of every layer's weights, and a step of plain
gradient descent on copies that are dropped afterwards. Each layer is differentiated by itself, from
the last to the first, which gives the same gradients as all at once and lets other work run between
layers. Embedding tables are left as they are: their gradient does not depend on the attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.model.adapted import dense, named_tensors
from engine.model.encoder import Attend, Encoder
from engine.model.layers import Layer, layers_of
from engine.model.positions import positions_in_sequences
from kernels.attention import PackedSequences


class _Done(NamedTuple):
    """A layer's forward pass, kept until its backward pass."""

    entered: Tensor  # [T, W] a leaf
    left: Tensor  # [T, W]


class TrainableLayers:
    """Copies of an encoder's layers that can be trained. Made once, used for many steps."""

    def __init__(
        self, encoder: Encoder, attention: Sequence[Attend], *, rate: float = 1e-6
    ) -> None:
        self.tensors = {
            name: tensor.detach().clone().requires_grad_()
            for name, tensor in named_tensors(encoder.weights)
            if name.startswith("layers.")
        }
        weights = dense(encoder.weights, self.tensors)
        self._encoder = encoder
        self._attention = tuple(attention)
        self._layers = layers_of(weights)
        self._rate = rate

    def step(self, ids: Tensor, bounds: Sequence[int]) -> Iterator[None]:
        """One step; stops after every layer, on the way up and on the way down."""
        done = []
        with torch.no_grad():
            x = self._encoder.first_states(ids, bounds)
        for layer, attend in zip(self._layers, self._attention, strict=True):
            done.append(self._forward(layer, attend, x, bounds))
            x = done[-1].left.detach()
            yield
        gradient = 2 * x / x.numel()
        for index in reversed(range(len(self._layers))):
            gradient = self._backward(done.pop(), self._tensors_of(index), gradient)
            yield

    def _tensors_of(self, index: int) -> list[Tensor]:
        prefix = f"layers.{index}."
        return [tensor for name, tensor in self.tensors.items() if name.startswith(prefix)]

    @torch.enable_grad()
    def _forward(self, layer: Layer, attend: Attend, x: Tensor, bounds: Sequence[int]) -> _Done:
        entered = x.detach().requires_grad_()
        packed = PackedSequences.of(bounds, x.device)
        q, k, v = layer.project(entered, positions_in_sequences(bounds, x.device))
        return _Done(entered, layer.finish(attend(q, k, v, packed).flatten(1), entered))

    def _backward(self, done: _Done, parameters: Sequence[Tensor], gradient: Tensor) -> Tensor:
        """Updates a layer's parameters and returns the gradient of what entered it."""
        found = torch.autograd.grad(done.left, [done.entered, *parameters], gradient)
        with torch.no_grad():
            for parameter, of_parameter in zip(parameters, found[1:], strict=True):
                parameter -= self._rate * of_parameter
        return found[0]
