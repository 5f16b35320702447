"""Vendors cut texts that are too long without a word. Here the answer says what was dropped."""

from __future__ import annotations

from collections.abc import Iterable

from engine.types import Accounting

DROPPED_HEADER = "x-lln-dropped-tokens"
"""Tokens that were dropped, for each text that was cut: `2:130, 5:7` for the texts 2 and 5."""

MOST_TOLD = 200
"""At most this many texts that were cut are listed; `...` stands for the others. Many clients and
proxies refuse an answer with more than 8,190 bytes in a header, or 4,096 in all of them."""


def dropped_headers(costs: Iterable[Accounting]) -> dict[str, str]:
    cut = [
        f"{index}:{cost.tokens - cost.tokens_embedded}"
        for index, cost in enumerate(costs)
        if cost.tokens_embedded < cost.tokens
    ]
    told = cut if len(cut) <= MOST_TOLD else [*cut[:MOST_TOLD], "..."]
    return {DROPPED_HEADER: ", ".join(told)} if told else {}


def dropped_usage(costs: Iterable[Accounting]) -> dict[str, int]:
    dropped = sum(cost.tokens - cost.tokens_embedded for cost in costs)
    return {"dropped_tokens": dropped} if dropped else {}
