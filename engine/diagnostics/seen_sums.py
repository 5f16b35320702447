"""Sums over the keys that Diag shows to the rows of LLN+Diag."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.diagnostics.lln_diag import Blocks, Factors
from engine.diagnostics.rows import sum_p_log_p
from engine.steps import Steps


@dataclass(frozen=True)
class SeenSums:
    """Sums over the keys that Diag shows to a row, of LLN+Diag: each [H, N].

    Beyond those keys there is LLN alone, so with these sums quantities are linear that would
    otherwise need all keys.
    """

    p_log_p: Tensor
    p_squared: Tensor
    diag_distance: Tensor
    lln: Tensor
    lln_squared: Tensor
    channel_entropy: Tensor  # sum_c pi_c sum_j -kappa_cj log kappa_cj
    choice_entropy: Tensor  # sum_c -pi_c log pi_c sum_j kappa_cj


def seen_sums_of(
    blocks: Blocks, diag_tiles: Iterator[tuple[slice, Tensor]], factors: Factors
) -> Steps[SeenSums]:
    """`diag_tiles` are Diag's weights, some blocks at a time."""
    share = blocks.view.lln_share()
    parts: list[list[Tensor]] = []
    for tile, diag in diag_tiles:
        sums = _sums_of_tile(blocks, tile, diag, factors, share)
        parts.append([blocks.flat(part, tile).double() for part in sums])
        yield
    return SeenSums(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True)))


def _sums_of_tile(
    blocks: Blocks, tile: slice, diag: Tensor, factors: Factors, share: Tensor
) -> list[Tensor]:
    pi = blocks.rows(factors.pi, tile)  # [H, blocks, width, D]
    kappa = factors.kappa[:, :, blocks.keys[tile]].transpose(1, 2)
    kappa = blocks.hide(kappa, tile)  # [H, blocks, D, keys]
    mixed = torch.lerp(diag, pi @ kappa, blocks.rows(share, tile).unsqueeze(-1).to(diag))
    distances = blocks.distances(tile).expand_as(diag)
    mass = kappa.sum(-1, keepdim=True)  # [H, blocks, D, 1]
    by_channel = torch.cat([mass, -sum_p_log_p(kappa).unsqueeze(-1)], dim=-1)
    lln, channel_entropy = (pi @ by_channel).unbind(-1)
    return [
        sum_p_log_p(mixed),
        torch.linalg.vecdot(mixed, mixed),
        torch.linalg.vecdot(diag, distances),
        lln,
        torch.linalg.vecdot(pi @ (kappa @ kappa.mT), pi),
        channel_entropy,
        (torch.special.entr(pi) @ mass).squeeze(-1),
    ]
