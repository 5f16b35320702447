"""How much the text before a place and the text after it are about the same.

On each side of the place lies a window of tokens. What attention has gathered into them, layer by
layer, is in their states; cohesion is the cosine of the two windows' mean states. It is low where
the subject changes.

The cost is one pass over the states, and for every place and reach a few dozen rows: linear.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.maps.pauses import PAUSE, InSteps
from engine.types import Span

_STRIDE = 64
"""Tokens between two sums that are kept."""

_PLACES_A_STEP = 256


class Sums:
    """Sums of states [T, W] from the first token up to any other, without one for every token."""

    def __init__(self, states: Tensor) -> None:
        self._states = states
        strides = torch.split(states, _STRIDE)
        by_stride = torch.stack([part.sum(0, dtype=torch.float64) for part in strides])
        self._up_to = F.pad(by_stride.cumsum(0), (0, 0, 1, 0))  # [strides + 1, W]

    def up_to(self, tokens: Tensor) -> Tensor:
        """Of all tokens before these: [places, W] float64."""
        last = tokens // _STRIDE
        beyond = last.unsqueeze(1) * _STRIDE + torch.arange(_STRIDE, device=tokens.device)
        counts = beyond < tokens.unsqueeze(1)
        rows = self._states[beyond.clamp_max(len(self._states) - 1)].double()  # [P, stride, W]
        return self._up_to[last] + torch.einsum("ps,psw->pw", counts.double(), rows)


def cohesion(sums: Sums, places: Tensor, reach: int, content: Span) -> InSteps[Tensor]:
    """At each place, with windows of at most `reach` tokens on either side: [places] float64."""
    found = []
    for some in torch.split(places, _PLACES_A_STEP):
        first = (some - reach).clamp_min(content.start)
        end = (some + reach).clamp_max(content.end)
        middle = sums.up_to(some)
        found.append(
            torch.cosine_similarity(middle - sums.up_to(first), sums.up_to(end) - middle, dim=1)
        )
        yield PAUSE
    return torch.cat(found) if found else places.double()
