"""Vectors near the slowest modes of a chain with blocks: constant in each group of blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.diagnostics.head_group import HeadGroup
from engine.diagnostics.linear_algebra import leading_parts
from engine.steps import Steps

_MAX_GROUPS = 128


def group_vectors(heads: HeadGroup, count: int) -> Steps[Tensor]:
    """The leading eigenvectors of the chain between groups of blocks, constant in each group."""
    assert heads.blocks is not None, "there are blocks to group"
    blocks_a_group = -(-heads.blocks.count // _MAX_GROUPS)
    tokens = torch.arange(heads.num_tokens, device=heads.view.q.device)
    group = tokens // (heads.blocks.width * blocks_a_group)
    chain = yield from _chain_between(heads, group)
    parts = leading_parts(chain, slice(1, count + 1))
    leading = torch.linalg.svd(parts, full_matrices=False).U[..., :count].to(heads.view.q.device)
    by_token: Tensor = leading[:, group]
    return by_token


def _chain_between(heads: HeadGroup, group: Tensor) -> Steps[Tensor]:
    """The mean over a group's rows of the mass they send to each group: [H, groups, groups]."""
    assert heads.blocks is not None, "there are blocks to group"
    blocks, count = heads.blocks, int(group[-1]) + 1
    sizes = torch.bincount(group).double()
    chain = torch.zeros(heads.num_heads, count, count, dtype=torch.float64, device=group.device)
    share = heads.view.lln_share() if heads.view.has_channels else None
    for tile, diag in heads.diag_tiles():
        rows = group[tile.start * blocks.width : tile.stop * blocks.width : blocks.width]
        by_row = diag[..., : blocks.width].sum(-1, keepdim=True)
        parts = torch.cat([by_row, diag[..., blocks.width :]], dim=-1).double()
        if share is not None:
            parts *= 1 - blocks.rows(share.unsqueeze(-1), tile)
        own, to_sinks = parts[..., 0].sum(2), parts[..., 1:].sum(2)  # [H, blocks, ...]
        chain.diagonal(dim1=1, dim2=2).index_add_(1, rows, own)
        for sink, position in enumerate(blocks.sinks.tolist()):
            chain[:, :, int(group[position])].index_add_(1, rows, to_sinks[..., sink])
        yield
    if share is not None:
        factors = yield from heads.factors()
        size = heads.view.head_size
        leaving = chain.new_zeros(heads.num_heads, count, size)
        leaving.index_add_(1, group, factors.pi * share.unsqueeze(-1))
        arriving = torch.zeros_like(leaving).index_add_(1, group, factors.kappa.mT.contiguous())
        chain += leaving @ arriving.mT
    return chain / sizes.view(1, -1, 1)
