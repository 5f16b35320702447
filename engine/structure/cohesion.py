"""How strongly the text before a place and the text after it attend to each other.

Of the attention that two neighbouring windows spend on themselves and on each other, cohesion is
the ratio of what crosses to what stays. A head whose attention forgets about topics has it equally
high everywhere; a boundary between topics is a place where it is low.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.maps.lens import HeadLens, Prefixes
from engine.maps.pauses import PAUSE, InSteps

_SMALLEST = 1e-30


def cohesion(lens: HeadLens, places: Tensor, widths: tuple[int, ...]) -> InSteps[Tensor]:
    """Of one head, at each place and summed over windows of these widths: [places].

    With LLN each place costs O(D), by prefix sums. Without, the attention between all places is
    summed once.
    """
    if lens.prefixes is not None:
        masses = _ChannelMasses(lens.prefixes)
        ratios = [_ratio(masses, places, width, lens.view.num_tokens) for width in widths]
        yield PAUSE
        return torch.stack(ratios).sum(0)
    length = lens.view.num_tokens
    edges = torch.cat([places.new_tensor([0]), places, places.new_tensor([length])])
    sums = yield from lens.sums(edges, edges)
    cells = _CellMasses(edges, sums)
    return torch.stack([_ratio(cells, places, width, length) for width in widths]).sum(0)


class _ChannelMasses:
    def __init__(self, prefixes: Prefixes) -> None:
        self._prefixes = prefixes

    def of(self, rows: tuple[Tensor, Tensor], columns: tuple[Tensor, Tensor]) -> Tensor:
        pi, kappa = self._prefixes.pi, self._prefixes.kappa
        return ((pi[rows[1]] - pi[rows[0]]) * (kappa[columns[1]] - kappa[columns[0]])).sum(-1)


class _CellMasses:
    """Rectangles whose sides are places, by two-dimensional prefix sums; others are rounded."""

    def __init__(self, edges: Tensor, sums: Tensor) -> None:
        self._edges = edges
        self._prefix = torch.nn.functional.pad(sums.cumsum(0).cumsum(1), (1, 0, 1, 0))

    def of(self, rows: tuple[Tensor, Tensor], columns: tuple[Tensor, Tensor]) -> Tensor:
        (top, bottom), (left, right) = map(self._indices, rows), map(self._indices, columns)
        total = self._prefix
        corners = total[bottom, right] - total[top, right] - total[bottom, left] + total[top, left]
        return corners.clamp_min(0.0)

    def _indices(self, tokens: Tensor) -> Tensor:
        above = torch.searchsorted(self._edges, tokens).clamp(1, len(self._edges) - 1)
        is_nearer_below = tokens - self._edges[above - 1] < self._edges[above] - tokens
        return above - is_nearer_below.long()


def _ratio(masses: _ChannelMasses | _CellMasses, places: Tensor, width: int, length: int) -> Tensor:
    before = ((places - width).clamp_min(0), places)
    after = (places, (places + width).clamp_max(length))
    crosses = masses.of(before, after) + masses.of(after, before)
    stays = masses.of(before, before) + masses.of(after, after)
    return crosses / stays.clamp_min(_SMALLEST)
