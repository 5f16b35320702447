"""How many replicas there should be, by the tokens that wait.

Serve calls this in its controller, with what `record_autoscaling_stats` of each replica returned
over the look-back period. Its own delays, factors and bounds still apply to the answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

METRIC = "outstanding_tokens"

_COMFORT = 0.6
"""A replica is given up only if the others would stay this far below what each may have."""


def replicas_wanted(
    tokens: Iterable[float], *, current: int, tokens_each: float, least: int, most: int
) -> int:
    """The number of replicas, by the tokens that each has still to read."""
    outstanding = sum(tokens)
    wanted = math.ceil(outstanding / tokens_each)
    if wanted < current and outstanding > _COMFORT * tokens_each * max(current - 1, 1):
        wanted = current
    return min(max(wanted, least), most)


class ScaleByTokens:
    """The policy for `autoscaling_config`."""

    def __init__(self, tokens_each: float) -> None:
        self._tokens_each = tokens_each

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        by_replica = (context.aggregated_metrics or {}).get(METRIC, {})
        wanted = replicas_wanted(
            by_replica.values(),
            current=context.target_num_replicas,
            tokens_each=self._tokens_each,
            least=context.capacity_adjusted_min_replicas,
            most=context.capacity_adjusted_max_replicas,
        )
        return wanted, {}
