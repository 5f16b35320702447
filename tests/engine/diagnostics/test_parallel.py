"""Steps on several threads: results in order, pauses in between, and failures that surface."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from engine.diagnostics import measure
from engine.diagnostics.parallel import run_parallel
from engine.steps import Steps, finish
from tests.engine.dense import make_view

NUM_STEPS = 5


def counted(index: int, threads: set[int]) -> Steps[int]:
    for _ in range(NUM_STEPS):
        assert not torch.is_grad_enabled()
        assert torch.get_num_threads() == 1
        threads.add(threading.get_ident())
        yield
    return index


def failing() -> Steps[int]:
    yield
    raise ValueError("this head cannot be read")


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("num_works", [0, 1, 2, 7])
def test_results_come_in_order(two_threads: None, num_works: int) -> None:
    threads: set[int] = set()
    works = (counted(index, threads) for index in range(num_works))
    assert finish(run_parallel(works, 2)) == list(range(num_works))
    assert threading.get_ident() not in threads
    assert torch.get_num_threads() == 2


def test_one_thread_is_the_callers_own(one_thread: None) -> None:
    threads: set[int] = set()
    with torch.no_grad():
        pauses = sum(1 for _ in run_parallel((counted(index, threads) for index in range(3)), 1))
    assert threads == {threading.get_ident()}
    assert pauses == 3 * NUM_STEPS


def test_no_more_are_begun_than_there_are_threads(two_threads: None) -> None:
    """Each holds memory."""
    begun: list[int] = []

    def endless(index: int) -> Steps[int]:
        begun.append(index)
        while True:
            yield

    steps = run_parallel((endless(index) for index in range(4)), 2)
    for _ in range(3):
        next(steps)
    steps.close()
    assert sorted(begun) == [0, 1]


def test_a_failure_comes_out(two_threads: None) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        finish(run_parallel(iter([counted(0, set()), failing()]), 2))


def test_heads_read_in_parallel_read_the_same(
    two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = make_view("lln_diag", 200, sinks=(1, 1))
    monkeypatch.setattr("engine.diagnostics.head_readings._TOKENS_A_GROUP", 200)
    monkeypatch.setattr("engine.diagnostics.head_readings._TOKENS_IN_MEMORY", 200)
    one_by_one = measure(view)
    monkeypatch.setattr("engine.diagnostics.head_readings._TOKENS_IN_MEMORY", 600)
    for name, reading in measure(view).items():
        np.testing.assert_allclose(reading.values, one_by_one[name].values, rtol=1e-9)
