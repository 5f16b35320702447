"""The strongest single entries of P within a window, found tile by tile."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.maps.lens import SCORES_A_STEP, HeadLens
from engine.maps.pauses import PAUSE, InSteps
from engine.maps.plan import MapPlan
from engine.types import Link


class StrongestLinks:
    """The best so far of the tiles seen so far."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._values = torch.zeros(0, dtype=torch.float64)
        self._places = torch.zeros(0, 2, dtype=torch.long)

    def add(self, entries: Tensor, first_row: int, first_column: int) -> None:
        top = entries.flatten().topk(min(self._count, entries.numel()))
        indices = top.indices.cpu()
        rows = indices // entries.shape[1] + first_row
        places = torch.stack([rows, indices % entries.shape[1] + first_column], dim=1)
        values = torch.cat([self._values, top.values.cpu()])
        best = values.topk(min(self._count, len(values))).indices
        self._values = values[best]
        self._places = torch.cat([self._places, places])[best]

    def found(self) -> tuple[Link, ...]:
        return tuple(
            Link(query=query, key=key, weight=weight)
            for (query, key), weight in zip(
                self._places.tolist(), self._values.tolist(), strict=True
            )
        )


def find_links(lens: HeadLens, plan: MapPlan) -> InSteps[tuple[Link, ...]]:
    """The window's strongest links, the strongest first."""
    links = StrongestLinks(plan.links)
    columns = slice(plan.columns.start, plan.columns.end)
    is_softmax = lens.view.attention == "softmax"
    width = lens.view.num_tokens if is_softmax else columns.stop - columns.start
    step = max(1, SCORES_A_STEP // width)
    for start in range(plan.rows.start, plan.rows.end, step):
        end = min(start + step, plan.rows.end)
        links.add(lens.entries(start, end, columns), start, columns.start)
        yield PAUSE
    return links.found()
