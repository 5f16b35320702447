"""Turns with Python's lock, and long work beside the event loop."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from engine.platform.turns import beside_others, beside_others_if_many, quick_turns


def test_turns_are_quick_until_the_last_has_left() -> None:
    usual_s = sys.getswitchinterval()
    first, second = quick_turns(), quick_turns()
    with first:
        second.__enter__()
    assert sys.getswitchinterval() < usual_s, "the second is still within"
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(usual_s)


def test_work_beside_others_has_quick_turns_and_a_thread() -> None:
    usual_s = sys.getswitchinterval()
    turn_s, thread = asyncio.run(
        beside_others(lambda: (sys.getswitchinterval(), threading.current_thread()))
    )
    assert turn_s < usual_s
    assert thread is not threading.current_thread()


@pytest.mark.parametrize(("count", "is_here"), [(1, True), (10_000, False)])
def test_only_many_results_need_a_thread(count: int, is_here: bool) -> None:
    thread = asyncio.run(beside_others_if_many(threading.current_thread, count))
    assert (thread is threading.current_thread()) is is_here
