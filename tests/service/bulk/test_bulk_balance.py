"""How rows become parts of about the same cost, and which part goes first."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.bulk.balance import simulate
from service.bulk.balance import cut, estimated_cost, largest_first

COSTS = st.lists(st.integers(0, 40), max_size=60)
SLOW_MACHINES_TOO = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SLOW_MACHINES_TOO
@given(COSTS, st.integers(1, 30), st.integers(1, 8))
def test_parts_hold_all_items_in_order_within_both_limits(
    costs: list[int], max_cost: int, max_items: int
) -> None:
    parts = list(cut(costs, int, max_cost=max_cost, max_items=max_items))
    assert [cost for part in parts for cost in part] == costs
    for part in parts:
        assert len(part) <= max_items
        assert sum(part) <= max_cost or len(part) == 1
    for part, following in pairwise(parts):
        assert len(part) == max_items or sum(part) + following[0] > max_cost, "it is full"


@SLOW_MACHINES_TOO
@given(COSTS, st.integers(1, 8), st.integers(1, 100))
def test_the_largest_of_those_read_ahead_comes_first(
    costs: list[int], max_items: int, max_cost: int
) -> None:
    items = list(enumerate(costs))
    given_out = list(
        largest_first(items, lambda item: item[1], max_items=max_items, max_cost=max_cost)
    )
    assert sorted(given_out) == items
    places = {number: place for place, (number, _) in enumerate(given_out)}
    for number, cost in items:
        overtaken = [
            other for other, _ in items if other < number and places[other] > places[number]
        ]
        assert len(overtaken) < max_items
        assert all(costs[other] < cost for other in overtaken)


def test_a_book_at_the_end_of_those_read_ahead_goes_first() -> None:
    costs = [5, 5, 5, 100, 5]
    assert list(largest_first(costs, int, max_items=4, max_cost=1_000)) == [100, 5, 5, 5, 5]


def test_cost_is_about_the_tokens() -> None:
    english = "Cost is in tokens, not in rows: one book takes as long as many notes. " * 20
    chinese = "注意力机制读取整个文档" * 20  # a token a character
    assert 0.6 < (estimated_cost(english) - 16) / (17 * 20) < 1.6
    assert 0.6 < (estimated_cost(chinese) - 16) / len(chinese) < 1.6


def test_balance_by_tokens_where_books_stand_together() -> None:
    """In the simulation of `benchmarks.bulk`, with four workers and a price linear in tokens."""
    cases = simulate(float)["cases"]
    for order, ways in cases.items():
        assert ways["tokens"] < 1.05, order
    assert cases["books last"]["gain over rows, 512 at a time"] > 1.5
    assert cases["books first"]["gain over rows, a stretch for each worker"] > 1.5
