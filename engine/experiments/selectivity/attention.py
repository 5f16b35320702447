"""LLN+Diag with a branch that can choose: several LLN states, and summaries of blocks.

A token's output is Diag's, softmax within its block, mixed with what it reads of other branches:

- an LLN state for each part of the document: all of it, or by distance from the token's block;
- softmax over summaries of the other blocks, each a mean of keys and one of values.

Shares come from one softmax of a branch's logits and 0 for Diag, so all branches compete. An LLN
part's logit has the logarithm of its share in the mass of all parts: parts that share one gate and
one bias are together exactly LLN over the whole document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from engine.checkpoint.block_size import beyond_a_block
from kernels.attention import PackedSequences, block_diagonal_attention

PartOfDocument: TypeAlias = Literal["everything", "own_block", "neighbours", "farther"]

_HIDDEN = -1e9
"""A logit that leaves nothing, and unlike minus infinity has gradients where all are hidden."""


class LLNBranch(NamedTuple):
    """C channels of state: D of them, or more with several feature maps."""

    alpha: Tensor  # [H]
    beta: Tensor  # [H]
    query_map: Tensor  # [H, D, C]
    key_map: Tensor  # [H, D, C]
    key_shift: Tensor  # [H, C]
    gate: Tensor  # [P, H, D]
    bias: Tensor  # [P, H]
    parts: tuple[PartOfDocument, ...]  # P


class SummaryBranch(NamedTuple):
    pick: Tensor  # [H, D] a key weighs exp(pick . key) in its block's summary: 0 is the mean
    log_sharpness: Tensor  # [H] of the softmax over summaries
    gate: Tensor  # [H, D]
    bias: Tensor  # [H]


class _Read(NamedTuple):
    """What the tokens of one document read of some branches."""

    values: Tensor  # [P, n, H, b, D]
    logits: Tensor  # [P, n, H, b] of their shares


@dataclass(frozen=True)
class SelectiveAttention:
    """One layer's attention over packed documents."""

    block: int
    num_sinks: tuple[int, int]
    lln: LLNBranch | None = None
    summary: SummaryBranch | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        diag = block_diagonal_attention(
            q, k, v, cu_seqlens=packed, block_size=self.block, num_sinks=self.num_sinks
        )
        if self.lln is None and self.summary is None:
            return diag
        documents = [slice(*bounds) for bounds in pairwise(packed.host_bounds())]
        return torch.cat([self._mixed(q[rows], k[rows], v[rows], diag[rows]) for rows in documents])

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor, diag: Tensor) -> Tensor:
        blocks = _Blocks(q, k, v, self.block)
        read = self._read(blocks)
        shares = self._shares(read, len(q)).unsqueeze(-1)
        others, share = (shares * read.values).sum(0), shares.sum(0)
        return blocks.joined(others) + (1 - blocks.joined(share)) * diag

    def _read(self, blocks: _Blocks) -> _Read:
        found = []
        if self.lln is not None:
            found.append(_read_states(blocks, self.lln))
        if self.summary is not None:
            found.append(_read_summaries(blocks, self.summary))
        return _Read(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    def _shares(self, read: _Read, length: int) -> Tensor:
        with_diag = torch.cat([torch.zeros_like(read.logits[:1]), read.logits])
        return with_diag.softmax(0)[1:] * beyond_a_block(length, self.block)


class _Blocks:
    """One document's queries, keys and values by block: [n, H, b, D], the last block padded."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, size: int) -> None:
        self.length, self.count = len(q), -(-len(q) // size)
        self.q, self.k, self.v = (self._divided(x, size) for x in (q, k, v))
        place = torch.arange(self.count * size).view(self.count, 1, size, 1)
        self.hidden = place >= self.length  # [n, 1, b, 1]

    def joined(self, x: Tensor) -> Tensor:
        """[n, H, b, ...] as rows [N, H, ...]."""
        return x.transpose(1, 2).flatten(0, 1)[: self.length]

    def _divided(self, x: Tensor, size: int) -> Tensor:
        padded = torch.cat([x, x.new_zeros(self.count * size - len(x), *x.shape[1:])])
        return padded.view(self.count, size, *x.shape[1:]).transpose(1, 2)


def parts_of_document(parts: Sequence[PartOfDocument], count: int) -> Tensor:
    """Which of `count` blocks a token of each block finds in each part: [P, n, n]."""
    place = torch.arange(count)
    apart = (place[:, None] - place[None, :]).abs()
    found: Mapping[PartOfDocument, Tensor] = {
        "everything": apart >= 0,
        "own_block": apart == 0,
        "neighbours": apart == 1,
        "farther": apart > 1,
    }
    return torch.stack([found[part] for part in parts])


def _read_states(blocks: _Blocks, lln: LLNBranch) -> _Read:
    scores = (blocks.k @ lln.key_map + lln.key_shift.unsqueeze(1)) * lln.beta[:, None, None]
    scores = scores.masked_fill(blocks.hidden, _HIDDEN)
    of_block = scores.logsumexp(2)  # [n, H, C] the logarithm of each channel's mass
    kept = (scores - of_block.unsqueeze(2)).exp().transpose(2, 3) @ blocks.v  # [n, H, C, D]
    is_inside = parts_of_document(lln.parts, blocks.count)[..., None, None]  # [P, n, n, 1, 1]
    masses = torch.where(is_inside, of_block, _HIDDEN)
    of_part = masses.logsumexp(2)  # [P, n, H, C]
    weights = (masses - of_part.unsqueeze(2)).exp()  # [P, n, n, H, C]
    states = torch.einsum("pijhc,jhcd->pihcd", weights, kept)
    queries = (blocks.q @ lln.query_map) * lln.alpha[:, None, None]
    channels = queries + of_part.unsqueeze(3)  # [P, n, H, b, C]
    mass = channels.logsumexp(-1)  # [P, n, H, b]
    read = (channels - mass.unsqueeze(-1)).exp() @ states
    logits = torch.einsum("nhbd,phd->pnhb", blocks.q, lln.gate) + lln.bias[:, None, :, None]
    return _Read(read, logits + mass - mass.logsumexp(0))


def _read_summaries(blocks: _Blocks, summary: SummaryBranch) -> _Read:
    picks = (blocks.k @ summary.pick.unsqueeze(-1)).masked_fill(blocks.hidden, _HIDDEN)
    weights = picks.softmax(2).transpose(2, 3)  # [n, H, 1, b]
    keys, values = ((weights @ x).squeeze(2).transpose(0, 1) for x in (blocks.k, blocks.v))
    scale = summary.log_sharpness.exp() * blocks.q.shape[-1] ** -0.5
    scores = torch.einsum("nhbd,hjd->nhbj", blocks.q * scale[:, None, None], keys)
    is_own = torch.eye(blocks.count, dtype=torch.bool)[:, None, None]
    read = scores.masked_fill(is_own, _HIDDEN).softmax(-1) @ values
    logits = (blocks.q * summary.gate.unsqueeze(1)).sum(-1) + summary.bias.unsqueeze(-1)
    return _Read(read.unsqueeze(0), logits.unsqueeze(0))
