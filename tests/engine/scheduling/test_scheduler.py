"""The policy, by example, with a clock that the tests turn."""

from __future__ import annotations

from typing import Any, cast

import pytest

from engine.scheduling.queues import CALL_DELAY
from engine.scheduling.request import Entry, Unit, UnitKind
from engine.scheduling.scheduler import FIRST_UNIT_S, LEAST_BATCH_TOKENS, Scheduler
from tests.engine.scheduling.line import (
    MAX_BATCH_SEQUENCES,
    MAX_QUEUE_CALLS,
    MAX_QUEUE_TOKENS,
    Line,
)


def test_nothing_waits(line: Line) -> None:
    assert line.scheduler.next_unit(0.0) is None
    assert line.scheduler.is_empty


def test_batches_last_about_as_long_as_they_may(line: Line) -> None:
    line.scheduler = Scheduler(
        max_batch_tokens=8_192,
        max_batch_sequences=512,
        max_batch_s=0.5,
        max_queue_tokens=1_000_000,
    )

    def tokens_of_batches(seconds_a_token: float) -> list[int]:
        for _ in range(200):
            line.add(512)
        found = []
        while unit := line.scheduler.next_unit(line.now):
            found.append(sum(entry.request.tokens for entry in unit.entries))
            line.scheduler.record(unit, found[-1] * seconds_a_token)
        return found

    first, *others, _ = tokens_of_batches(0.5 / 4_096)
    assert first == LEAST_BATCH_TOKENS  # nothing is known
    assert set(others) == {4_096}
    assert tokens_of_batches(1.0)[20] == LEAST_BATCH_TOKENS
    assert max(tokens_of_batches(1e-6)) == 8_192


def test_a_call_of_many_texts_is_passed_by_later_ones(line: Line) -> None:
    many = [line.add(50, after_s=0.5 * number) for number in range(8)]
    assert line.serve() == many[:2]  # the first batch, which takes a second
    short = line.add(10)
    other = [line.add(50, after_s=0.5 * number) for number in range(8)]
    assert line.serve() == [short, other[0]]
    line.now += CALL_DELAY * 0.5 * 8
    later = line.add(10)
    # All of them have waited for so long that nothing passes them any more.
    served = [entry for batch in line.serve_all() for entry in batch]
    assert served[-1] is later
    assert set(served) == {*many[2:], *other[1:], later}


def test_what_is_still_to_be_read(line: Line) -> None:
    line.add(60)
    line.add(1_000)  # longer than a batch
    line.call()
    sweep = line.sweep(seconds=10.0)
    assert line.scheduler.outstanding(None) == (60, 1_000 + 1 + 5_000)
    batch = line.scheduler.next_unit(0.0)
    assert batch is not None
    assert line.scheduler.outstanding(batch) == (60, 6_001), "it has left the queue, and runs"
    assert line.scheduler.outstanding(None) == (0, 6_001)
    sweep.busy_s = 4.0
    assert sweep.tokens_left == 3_000
    sweep.busy_s = 40.0  # slower than was thought: not at its end before it ends
    assert sweep.tokens_left == 100


# Batches


def test_a_batch_fills_in_order_up_to_the_token_budget(line: Line) -> None:
    a, b, c, d = (line.add(tokens) for tokens in (60, 40, 70, 10))
    assert line.scheduler.waiting_tokens == 180
    assert line.serve_all() == [[a, b], [c, d]]
    assert line.scheduler.waiting_tokens == 0


def test_an_entry_that_does_not_fit_is_not_overtaken(line: Line) -> None:
    a, b, c = (line.add(tokens) for tokens in (60, 41, 10))
    assert line.serve_all() == [[a], [b, c]]


def test_a_batch_holds_a_bounded_number_of_sequences(line: Line) -> None:
    entries = [line.add(1) for _ in range(MAX_BATCH_SEQUENCES + 1)]
    assert line.serve_all() == [entries[:-1], entries[-1:]]


def test_a_unit_has_one_model_and_the_first_job_chooses_it(line: Line) -> None:
    a1, b1, a2, b2 = (line.add(10, model=model) for model in "abab")
    assert line.serve_all() == [[a1, a2], [b1, b2]]


def test_departed_jobs_are_passed_over(line: Line) -> None:
    cancelled, late, alive = line.add(10), line.add(10, timeout_s=1.0), line.add(10)
    cancelled.future.cancel()
    line.now = 1.0
    assert line.serve() == [alive]
    assert line.serve() == []
    assert line.scheduler.num_waiting == 2, "they stay until someone answers them"
    assert line.scheduler.remove(cancelled)
    assert line.scheduler.remove(late)
    assert line.scheduler.is_empty


def test_an_entry_is_served_up_to_its_deadline(line: Line) -> None:
    entry = line.add(10, timeout_s=1.0)
    line.now = 0.999
    assert line.serve() == [entry]


def test_a_model_whose_jobs_all_left_does_not_hide_another(line: Line) -> None:
    line.add(10, model="a").future.cancel()
    alive = line.add(10, model="b")
    assert line.serve() == [alive]


def test_a_background_text_lets_others_pass_but_not_for_ever(line: Line) -> None:
    background = line.add(100, priority="background")
    line.now = 29.0
    normal = line.add(100)
    line.now = 31.0
    late = line.add(100)
    assert line.serve_all() == [[normal], [background], [late]]


def test_a_deadline_nearer_than_patience_counts(line: Line) -> None:
    relaxed = line.add(100, priority="background")
    pressed = line.add(100, priority="background", timeout_s=5.0)
    assert line.serve_all() == [[pressed], [relaxed]]


def test_a_text_that_cannot_meet_its_deadline_passes_nobody_before_it(line: Line) -> None:
    earlier = line.sweep(seconds=1.0)
    line.now = 2.0
    hopeless = line.add(5_000, kind="sweep_tile", seconds=100.0, timeout_s=70.0)
    assert line.serve() == [earlier]
    assert line.scheduler.remove(earlier)
    assert line.serve() == [hopeless]


# Long work


def test_short_work_goes_before_long(line: Line) -> None:
    long, short = line.add(500), line.add(60)
    assert line.serve_all() == [[short], [long]]


def test_long_work_is_owed_its_share_under_constant_load(line: Line) -> None:
    line.add(500)
    first_long_at = None
    for _ in range(5):
        line.add(100)
        (entry,) = line.serve(FIRST_UNIT_S)
        if entry.request.tokens == 500:
            first_long_at = line.now
    # Three parts of short work earn one of long work.
    assert first_long_at == pytest.approx(4 * FIRST_UNIT_S)


def test_a_long_unit_is_paid_for_before_the_next(line: Line) -> None:
    tiles: list[Entry] = []
    short = 0
    sweep = line.sweep()
    for _ in range(400):
        line.add(100)
        (entry,) = line.serve(0.3 if sweep in tiles and len(tiles) % 2 else 0.1)
        tiles += [sweep] if entry is sweep else []
        short += entry is not sweep
    assert len(tiles) > 10
    assert short > 2 * len(tiles)


def test_idle_time_is_not_held_against_long_work(line: Line) -> None:
    sweep = line.sweep()
    for _ in range(1_000):
        assert line.serve(0.1) == [sweep]
    for _ in range(3):
        line.add(100)
        assert line.serve(0.1) != [sweep]
    line.add(100)
    assert line.serve(0.1) == [sweep]


def test_kinds_of_long_work_share_by_time(line: Line) -> None:
    sweep = line.sweep()
    calls = [line.call(), line.call()]
    served = [line.serve(1.0 if number == 1 else 0.1)[0] for number in range(15)]
    assert served[:2] == [sweep, calls[0]]
    assert served[2:11] == [sweep] * 9, "until it has had as much time as the call"
    assert calls[1] in served[11:13]


def test_a_call_runs_when_no_text_waits(line: Line) -> None:
    calls = [line.call(), line.call()]
    texts = [line.add(60), line.add(60)]
    assert line.serve_all() == [[texts[0]], [texts[1]], [calls[0]], [calls[1]]]


# Admission


def test_remove_says_whether_the_job_still_waited(line: Line) -> None:
    gone, served = line.add(500), line.add(10)
    assert line.scheduler.remove(gone)
    assert not line.scheduler.remove(gone)
    assert line.serve() == [served]
    assert not line.scheduler.remove(served)
    assert line.scheduler.waiting_tokens == 0


def test_remove_all_gives_everything_back_in_order(line: Line) -> None:
    entries = [line.add(10), line.call(), line.add(500), line.sweep(), line.add(10, model="b")]
    assert line.scheduler.remove_all() == entries
    assert line.scheduler.is_empty
    assert line.serve() == []


def test_a_full_queue_takes_no_more(line: Line) -> None:
    line.add(900)
    assert line.scheduler.can_add(100)
    assert not line.scheduler.can_add(101)


def test_an_empty_queue_takes_work_of_any_size(line: Line) -> None:
    assert line.scheduler.can_add(MAX_QUEUE_TOKENS * 10)
    line.add(MAX_QUEUE_TOKENS * 10)
    assert not line.scheduler.can_add(1)


def test_calls_have_a_limit_of_their_own(line: Line) -> None:
    line.add(MAX_QUEUE_TOKENS)
    for _ in range(MAX_QUEUE_CALLS):
        assert line.scheduler.can_add_call()
        line.call()
    assert not line.scheduler.can_add_call()


def test_a_unit_has_the_tokens_of_its_entries(line: Line) -> None:
    entries = (line.add(10), line.add(20))
    unit = Unit(entries)
    assert (unit.tokens, unit.kind, unit.model) == (30, "batch", "a")


# Callers who leave while the scheduler chooses: futures change without its lock


class GoneAtTheSecondLook:
    """A future whose caller leaves between two looks at it."""

    def __init__(self) -> None:
        self.looks = 0

    def done(self) -> bool:
        self.looks += 1
        return self.looks > 1


@pytest.mark.parametrize("kind", ["batch", "sweep_tile", "diagnosis"])
def test_who_leaves_while_being_chosen_makes_room_for_the_next(kind: UnitKind, line: Line) -> None:
    gone = line.add(10, kind=kind)
    gone.future = cast(Any, GoneAtTheSecondLook())
    assert line.unit() is None
    gone.future = cast(Any, GoneAtTheSecondLook())
    stays = line.add(10, model="b")
    assert line.serve() == [stays]


def test_what_others_had_while_a_kind_was_away_is_not_held_against_them(line: Line) -> None:
    for _ in range(100):
        call = line.call()
        assert line.serve() == [call]
    sweep = line.sweep()
    assert line.serve() == [sweep]
    call = line.call()
    assert call in [*line.serve(), *line.serve(), *line.serve()]
