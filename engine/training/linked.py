"""The chunks of documents as linked passages, with gradients.

The same as `engine.model.linked_pass`, for several documents at once and not tile by tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from engine.model.attention import LayerAttention, LLNDiagAttention
from engine.model.encoder import Attend, Encoder
from engine.model.lln_parameters import LLNParameters
from engine.training.chunks import ChunkBatch
from engine.training.questions import QuestionBatch
from kernels.attention import PackedSequences, lln_read, lln_state, softmax_attention
from kernels.attention.functional import lln_shares


def linked_states(student: Encoder, batch: ChunkBatch | QuestionBatch) -> Tensor:
    """The states of the batch's chunks [T, W], each between special tokens of its own."""
    documents = _LinkedDocuments(batch, student.device)
    attention = [documents.attention(one) for one in student.attention]
    ids = batch.alone.ids.to(student.device)
    for states in student.walk(ids, batch.alone.bounds, attention=attention):
        last = states
    return last


@dataclass
class _LinkedDocuments:
    """Where documents, their chunks and the content of these are among the rows."""

    batch: ChunkBatch | QuestionBatch
    device: torch.device

    def attention(self, own: LayerAttention) -> Attend:
        if not isinstance(own, LLNDiagAttention):
            return own  # a window that ends with its chunk

        def attend(q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
            return self._attend(own.parameters, q, k, v, packed)

        return attend

    def _attend(
        self, lln: LLNParameters, q: Tensor, k: Tensor, v: Tensor, chunks: PackedSequences
    ) -> Tensor:
        inside = softmax_attention(q, k, v, cu_seqlens=chunks)
        rows, of_documents = self._content
        state = lln_state(
            *(k[rows], v[rows]), beta=lln.beta, cu_seqlens=of_documents, k_map=lln.k_map
        )
        beyond = lln_read(q, state, alpha=lln.alpha, cu_seqlens=self._documents, q_map=lln.q_map)
        shares = lln_shares(
            q, mix=lln.mix_of_token, mix_scale=self._outside.to(lln.mix.dtype), cu_seqlens=chunks
        )
        return torch.lerp(inside, beyond.to(inside.dtype), shares.unsqueeze(-1).to(inside.dtype))

    @cached_property
    def _lengths(self) -> list[int]:
        """Rows of each document."""
        lengths = np.zeros(max(self.batch.owners) + 1, np.int64)
        bounds = self.batch.alone.bounds
        np.add.at(lengths, self.batch.owners, np.diff(bounds))
        found: list[int] = lengths.tolist()
        return found

    @cached_property
    def _documents(self) -> PackedSequences:
        return PackedSequences.of([0, *np.cumsum(self._lengths).tolist()], self.device)

    @cached_property
    def _outside(self) -> Tensor:
        chunks = zip(pairwise(self.batch.alone.bounds), self.batch.owners, strict=True)
        shares = [1 - (end - start) / self._lengths[owner] for (start, end), owner in chunks]
        return torch.tensor(shares, device=self.device)

    @cached_property
    def _content(self) -> tuple[Tensor, PackedSequences]:
        """The rows of the chunks' own tokens, and where each document's are among them."""
        before, after = self.batch.around
        rows, counts = [], np.zeros(len(self._lengths), np.int64)
        for (start, end), owner in zip(
            pairwise(self.batch.alone.bounds), self.batch.owners, strict=True
        ):
            rows.append(torch.arange(start + before, end - after))
            counts[owner] += end - after - start - before
        packed = PackedSequences.of([0, *np.cumsum(counts).tolist()], self.device)
        return torch.cat(rows).to(self.device), packed
