"""The upper layers of a model with a variant of LLN's branch, to be trained on kept states.

The layers below are not trained, so what they give is the same in every step and every trial: it is
read once. So is what the published model makes of a text read alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from engine.experiments.selectivity.variants import (
    MAPS,
    Below,
    Tensors,
    Variant,
    attention_of,
    first_tensors,
)
from engine.model.embedding_model import EmbeddingModel
from engine.model.layers import layers_of
from engine.model.positions import positions_in_sequences
from engine.model.weight_overrides import dense, named_tensors
from engine.training.encode import Vectors, vectors_of
from engine.training.student import Part
from kernels.attention import PackedSequences

Tap = Callable[[int, Tensor, Tensor, Tensor], None]
"""Called with a layer's number and its q, k, v."""


class Readers:
    """A model, its blocks alone and the published model it was made from; all that does not train.

    The block size is fixed: how much LLN does must not depend on a document's length.
    """

    def __init__(self, model: EmbeddingModel, *, block: int, trained_layers: int) -> None:
        assert model.calibration is not None, "loaded as LLN+Diag"
        self.calibration = replace(model.calibration, block_size=block, long_block=None)
        self.model = model.with_calibration(self.calibration)
        self.first_trained = model.info.num_layers - trained_layers
        self.published = model.with_attention("softmax")
        self._below: Mapping[Below, EmbeddingModel] = {
            "lln_diag": self.model,
            "block_diagonal": self.model.with_attention("block_diagonal"),
        }
        self._states: dict[tuple[Below, bytes], Tensor] = {}
        self._vectors: dict[bytes, NDArray[np.float32]] = {}

    @torch.no_grad()
    def states_below(self, ids: Tensor, below: Below) -> Tensor:
        """The input of the first trained layer [N, W], for one document."""
        key = below, ids.numpy().tobytes()
        if key not in self._states:
            encoder, bounds = self._below[below].encoder, [0, len(ids)]
            layers = encoder.walk(ids, bounds)
            last = self.first_trained - 1
            found = next(islice(layers, last, None)) if self.first_trained else None
            self._states[key] = encoder.first_states(ids, bounds) if found is None else found
        return self._states[key]

    def alone(self, texts: Sequence[NDArray[Any]]) -> Vectors:
        """Unit vectors of texts that the published model reads alone; ids with special tokens."""
        keys = [np.asarray(text, np.int64).tobytes() for text in texts]
        new = [at for at, key in enumerate(keys) if key not in self._vectors]
        if new:
            found = vectors_of(self.published, [texts[at] for at in new])
            self._vectors.update(zip((keys[at] for at in new), found, strict=True))
        return np.stack([self._vectors[key] for key in keys])


class UpperLayers(nn.Module):
    """The trained layers, with the attention of a variant."""

    def __init__(
        self, readers: Readers, variant: Variant, mean_shares: Sequence[Tensor] | None = None
    ) -> None:
        super().__init__()
        self._readers, self._variant = readers, variant
        self._own = dense(readers.model.encoder.weights, {})
        numbers = range(readers.first_trained, len(self._own.layers))
        upper = tuple(f"layers.{number}." for number in numbers)
        self._trained = {
            name: nn.Parameter(tensor.detach().clone())
            for name, tensor in named_tensors(self._own)
            if name.startswith(upper)
        }
        self._branches: list[Tensors] = [
            {
                name: nn.Parameter(tensor)
                for name, tensor in first_tensors(
                    variant, readers.calibration, number, mean_shares[at] if mean_shares else None
                ).items()
            }
            for at, number in enumerate(numbers)
        ]
        of_branches = [tensor for layer in self._branches for tensor in layer.values()]
        self._registered = nn.ParameterList([*self._trained.values(), *of_branches])

    def groups(self, multiples: Mapping[Part, float]) -> list[dict[str, Any]]:
        """For an optimiser: the tensors of each part, and the multiple of the rate for it."""
        branches = [item for layer in self._branches for item in layer.items()]
        parts: dict[Part, list[Tensor]] = {
            "encoder": list(self._trained.values()),
            "maps": [tensor for name, tensor in branches if name in MAPS],
            "scalars": [tensor for name, tensor in branches if name not in MAPS],
        }
        return [
            {"params": tensors, "multiple": multiples[part]}
            for part, tensors in parts.items()
            if tensors
        ]

    def forward(self, x: Tensor, bounds: Sequence[int], tap: Tap | None = None) -> Tensor:
        """States of the last layer [T, W], from those below the first trained layer."""
        readers, weights = self._readers, dense(self._own, self._trained)
        packed = PackedSequences.of(bounds, x.device)
        positions = positions_in_sequences(bounds, x.device)
        upper = layers_of(weights)[readers.first_trained :]
        for at, (layer, tensors) in enumerate(zip(upper, self._branches, strict=True)):
            attention = attention_of(
                self._variant,
                tensors,
                block=readers.calibration.block_size,
                num_sinks=readers.calibration.num_sinks,
            )
            q, k, v = layer.project(x, positions)
            if tap is not None:
                tap(at, q, k, v)
            x = layer.finish(attention(q, k, v, packed).flatten(1), x)
        return x

    @torch.no_grad()
    def mean_shares(self, x: Tensor) -> list[Tensor]:
        """LLN's mean share of each head [H] over one document, by layer, as if it had no end."""
        found: list[Tensor] = []

        def add(at: int, q: Tensor, k: Tensor, v: Tensor) -> None:
            gate, bias = self._branches[at]["gate"], self._branches[at]["bias"]
            logits = torch.einsum("nhd,phd->pnh", q, gate) + bias.unsqueeze(1)
            found.append(torch.sigmoid(logits[0]).mean(0))

        self(x, [0, len(x)], add)
        return found
