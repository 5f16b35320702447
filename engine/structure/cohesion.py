"""How strongly the text before a place and the text after it attend to each other.

Around each place lies a window, as a block of Diag would lie there if its middle were the place:
the softmax of the layer's own scores among the window's tokens. Cohesion is the attention that
crosses the place over the attention that stays on its side. It is low where the subject changes.

The cost is that of block-diagonal attention, times the share of tokens that are places: linear.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.maps.lens import SCORES_A_STEP
from engine.maps.pauses import PAUSE, InSteps
from engine.types import Span

REACH = 96
"""Tokens on each side of a place."""


def cohesion(q: Tensor, k: Tensor, places: Tensor, content: Span) -> InSteps[Tensor]:
    """The mean over heads at each place, from q and k [T, H, D]: [places] float64."""
    found = []
    scores_a_place = q.shape[1] * (2 * REACH) ** 2
    for some in torch.split(places, max(1, SCORES_A_STEP // scores_a_place)):
        found.append(_cohesion_at(q, k, some, content))
        yield PAUSE
    return torch.cat(found) if found else places.double()


def _cohesion_at(q: Tensor, k: Tensor, places: Tensor, content: Span) -> Tensor:
    tokens = places[:, None] + torch.arange(-REACH, REACH, device=places.device)  # [P, W]
    inside = (tokens >= content.start) & (tokens < content.end)
    tokens = tokens.clamp(content.start, content.end - 1)
    queries, keys = (rows[tokens].float().transpose(1, 2) for rows in (q, k))  # [P, H, W, D]
    scores = queries @ keys.mT * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~inside[:, None, None, :], -torch.inf).softmax(-1)
    weights = weights * inside[:, None, :, None]
    crosses = weights[..., :REACH, REACH:].sum((-1, -2)) + weights[..., REACH:, :REACH].sum(
        (-1, -2)
    )
    stays = inside.sum(-1, keepdim=True) - crosses  # every row sums to 1
    ratios: Tensor = (crosses / stays).double()
    return ratios.mean(-1)
