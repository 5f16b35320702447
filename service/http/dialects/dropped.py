"""Vendors cut texts that are too long without a word. Here the answer says what was dropped."""

from __future__ import annotations

from collections.abc import Iterable

from engine.types import Accounting

DROPPED_HEADER = "x-lln-dropped-tokens"
"""Tokens that were dropped, for each text that was cut: `2:130, 5:7` for the texts 2 and 5."""


def dropped_headers(costs: Iterable[Accounting]) -> dict[str, str]:
    cut = [
        f"{index}:{cost.tokens - cost.tokens_embedded}"
        for index, cost in enumerate(costs)
        if cost.tokens_embedded < cost.tokens
    ]
    return {DROPPED_HEADER: ", ".join(cut)} if cut else {}


def dropped_usage(costs: Iterable[Accounting]) -> dict[str, int]:
    dropped = sum(cost.tokens - cost.tokens_embedded for cost in costs)
    return {"dropped_tokens": dropped} if dropped else {}
