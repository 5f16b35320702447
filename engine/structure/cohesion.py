"""How much the text before a place and the text after it are about the same.

On each side of the place lies a window of tokens. What attention has gathered into them, layer by
layer, is in their states; cohesion is the cosine of the two windows' mean states. It is low where
the subject changes.

The cost is one pass over the states, and for every place and reach a few dozen rows: linear.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.maps.pauses import PAUSE, InSteps
from engine.types import Span

_STRIDE = 64
"""Tokens between two sums that are kept."""

_TOKENS_A_STEP, _ROWS_A_STEP = 16_384, 4_096
"""Between two pauses: of the states summed, and of those looked at again around places."""


class Sums:
    """Sums of states [T, W] from the first token up to any other, without one for every token."""

    def __init__(self, states: Tensor, by_stride: Tensor) -> None:
        self._states = states
        self._up_to = F.pad(by_stride.cumsum(0), (0, 0, 1, 0))  # [strides + 1, W]

    def up_to(self, tokens: Tensor) -> Tensor:
        """Of all tokens before these: [places, W] float64."""
        last = tokens // _STRIDE
        beyond = last.unsqueeze(1) * _STRIDE + torch.arange(_STRIDE, device=tokens.device)
        counts = beyond < tokens.unsqueeze(1)
        rows = self._states[beyond.clamp_max(len(self._states) - 1)].double()  # [P, stride, W]
        return self._up_to[last] + torch.einsum("ps,psw->pw", counts.double(), rows)


def sums_of(states: Tensor) -> InSteps[Sums]:
    parts = []
    for some in torch.split(states, _TOKENS_A_STEP):
        padded = F.pad(some, (0, 0, 0, -len(some) % _STRIDE))
        by_stride = padded.view(-1, _STRIDE, states.shape[1])
        parts.append(by_stride.sum(1, dtype=torch.float64))
        yield PAUSE
    return Sums(states, torch.cat(parts))


def cohesion(sums: Sums, places: Tensor, reaches: Sequence[int], content: Span) -> InSteps[Tensor]:
    """At each place, with windows of at most so many tokens on either side: [reaches, places]."""
    found = [places.new_empty(len(reaches), 0, dtype=torch.float64)]
    looks_a_place = 1 + 2 * len(reaches)
    # A window ends with the content, and 64 bits hold no reach that a caller may think of.
    furthest = max(content.end - content.start, 0)
    within = [min(reach, furthest) for reach in reaches]
    for some in torch.split(places, max(1, _ROWS_A_STEP // (_STRIDE * looks_a_place))):
        middle = sums.up_to(some)
        by_reach = []
        for reach in within:
            before = middle - sums.up_to((some - reach).clamp_min(content.start))
            after = sums.up_to((some + reach).clamp_max(content.end)) - middle
            by_reach.append(torch.cosine_similarity(before, after, dim=1))
        found.append(torch.stack(by_reach))
        yield PAUSE
    return torch.cat(found, dim=1)
