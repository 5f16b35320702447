"""Training steps in which late chunks learn to know their document, as `lln adapt` has them.

A seed draws the same documents for every method. Only the upper layers read them in each step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from engine.experiments.selectivity.upper_layers import Readers, UpperLayers
from engine.experiments.selectivity.variants import Below
from engine.model.pooling import PooledSpan
from engine.training.chunks import ChunkCorpus
from engine.training.data import Document
from engine.training.encode import pooling_of
from engine.training.losses import LossWeights, chunk_losses, chunk_targets, unit_vectors
from engine.training.recipe import Stage
from engine.training.token_corpus import Batch


class KnownChunks:
    def __init__(
        self, sources: Mapping[str, Sequence[Document]], readers: Readers, stage: Stage, length: int
    ) -> None:
        self._chunks = ChunkCorpus(sources, readers.model.tokenizer)
        self._readers, self._stage, self._length = readers, stage, length
        self._pooling = pooling_of(readers.model)

    def check(self) -> None:
        """A typed error if no document is long enough."""
        self._chunks.check_documents(self._length)

    def loss(
        self, layers: UpperLayers, below: Below, documents: int, generator: np.random.Generator
    ) -> Tensor:
        batch = self._chunks.batch(self._length, documents * self._length, self._length, generator)
        texts = _texts(batch.documents)
        states = torch.cat([self._readers.states_below(text, below) for text in texts])
        bounds = list(accumulate(map(len, texts), initial=0))
        spans = [PooledSpan(*span) for span in batch.spans]
        chunks = unit_vectors(layers(states, bounds), spans, self._pooling)
        targets = chunk_targets(
            self._alone(batch.alone),
            self._alone(batch.contexts),
            torch.tensor(batch.owners),
            context_share=self._stage.context_share,
            mean_share=self._stage.mean_share,
        )
        return torch.stack(list(chunk_losses(chunks, targets, LossWeights()).values())).sum()

    def a_document(self) -> Tensor:
        """The ids of one document, the same in every run."""
        generator = np.random.default_rng(0)
        batch = self._chunks.batch(self._length, self._length, self._length, generator)
        return _texts(batch.documents)[0]

    def _alone(self, batch: Batch) -> Tensor:
        return torch.from_numpy(self._readers.alone([text.numpy() for text in _texts(batch)]))


def _texts(batch: Batch) -> list[Tensor]:
    return [batch.ids[start:end] for start, end in batch.spans]
