"""Texts that are read tile by tile: who has the next tile, what runs in between, and memory."""

from __future__ import annotations

from tests.engine.scheduling.line import MAX_SWEEP_BYTES, Line


def test_a_sweep_runs_tile_by_tile_until_it_is_removed(line: Line) -> None:
    sweep = line.sweep()
    assert line.scheduler.num_waiting == 1
    assert [line.serve() for _ in range(3)] == [[sweep]] * 3
    assert line.scheduler.num_waiting == 0
    assert line.scheduler.has_tiled(sweep)
    assert not line.scheduler.is_empty
    assert line.scheduler.remove(sweep)
    assert not line.scheduler.remove(sweep)
    assert line.scheduler.is_empty


def test_a_batch_between_two_tiles_preempts(line: Line) -> None:
    line.sweep()
    line.add(10)
    first = line.unit()
    assert first is not None
    assert not first.interrupts_tiled, "the sweep has not begun"
    line.serve()
    line.add(10)
    second = line.unit()
    assert second is not None
    assert (second.kind, second.interrupts_tiled) == ("batch", True)


def test_a_shorter_sweep_overtakes_a_longer_one_that_came_little_before(line: Line) -> None:
    long = line.sweep(seconds=100.0)
    assert line.serve() == [long]
    short = line.sweep(seconds=5.0)
    assert line.serve() == [short]
    line.now = 98.0
    late = line.sweep(seconds=5.0)
    line.scheduler.remove(short)
    assert line.serve() == [long], "it is due before one that comes so late"
    line.scheduler.remove(long)
    assert line.serve() == [late]


def test_sweeps_begin_only_within_the_memory_budget_and_in_order(line: Line) -> None:
    big = line.sweep(num_bytes=600, seconds=3.0)
    assert line.serve() == [big]
    second_big = line.sweep(num_bytes=600, seconds=1.0)
    small = line.sweep(num_bytes=100, seconds=1.5)
    assert line.serve() == [big], "the next one due does not fit, and nobody begins before it"
    line.scheduler.remove(big)
    assert line.serve() == [second_big]
    line.scheduler.remove(second_big)
    assert line.serve() == [small]


def test_ranks_read_one_text_at_a_time_and_others_pass(line: Line) -> None:
    first = line.sweep(needs_ranks=True, seconds=100)
    assert line.serve() == [first]
    waits, alone = line.sweep(needs_ranks=True, seconds=1), line.sweep(seconds=200)
    assert line.serve() == [first], "the second is due earlier, and waits for the ranks"
    line.scheduler.remove(first)
    assert line.serve() == [waits]
    line.scheduler.remove(waits)
    assert line.serve() == [alone]
    shared = line.sweep(needs_ranks=True, seconds=300)
    line.scheduler.remove(alone)
    assert line.serve() == [shared]
    line.sweep(needs_ranks=True, seconds=1)
    passes = line.sweep(seconds=2)
    assert line.serve() == [passes]


def test_a_sweep_beyond_the_budget_begins_alone(line: Line) -> None:
    huge = line.sweep(num_bytes=10 * MAX_SWEEP_BYTES)
    assert line.serve() == [huge]


def test_a_sweep_whose_caller_left_holds_its_memory_until_it_is_removed(line: Line) -> None:
    big = line.sweep(num_bytes=600)
    line.serve()
    other = line.sweep(num_bytes=600)
    big.future.cancel()
    assert line.serve() == []
    line.scheduler.remove(big)
    assert line.serve() == [other]
