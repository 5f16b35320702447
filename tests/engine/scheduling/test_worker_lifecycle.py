"""How the thread starts, drains, ends and dies."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Sequence

import pytest

from engine.errors import (
    DeviceFailure,
    EngineUnavailable,
    LLNError,
)
from engine.scheduling import worker
from engine.scheduling.deadline import Deadline
from engine.scheduling.observer import EngineObserver
from tests.engine.bridge import (
    Gate,
    Notes,
    held,
    new_device,
    on_loop,
    running,
    squares,
    texts,
)


@on_loop
async def test_work_is_refused_before_start_and_after_stop() -> None:
    observer = Notes()
    device = new_device(squares, observer)
    assert not device.alive
    assert not device.accepting
    with pytest.raises(EngineUnavailable):
        device.submit_text(1, 1)
    await device.start()
    assert device.alive
    assert device.accepting
    await device.stop(Deadline(10))
    assert not device.alive
    for refused in (lambda: device.submit_text(1, 1), lambda: device.call(print)):
        with pytest.raises(EngineUnavailable):
            refused()
    assert observer.rejected_for == ["unavailable"] * 3
    await device.stop(Deadline(10))


@on_loop
async def test_a_device_never_started_stops_at_once() -> None:
    await new_device(squares).stop(Deadline(10))


@on_loop
async def test_stop_drains_accepted_work() -> None:
    gate = Gate()
    async with held(gate) as (device, first):
        waiting = device.submit(texts([(number, 60) for number in range(5)]))
        call = device.call(lambda: "call")
        stopping = asyncio.create_task(device.stop(Deadline(10)))
        await asyncio.sleep(0)
        with pytest.raises(EngineUnavailable):
            device.submit_text(9, 1)
        assert device.alive
        assert not device.accepting
        gate.open.set()
        await stopping
        assert not device.alive
        done = [first, *waiting]
        assert [future.result().value for future in done] == [0, 0, 1, 4, 9, 16]
        assert call.result().value == "call"


@on_loop
async def test_stop_does_not_wait_for_callers_who_left() -> None:
    gate = Gate()
    async with held(gate) as (device, _):
        waiting = device.submit_text(1, 1)
        stopping = asyncio.create_task(device.stop(Deadline(10)))
        await asyncio.sleep(0)
        waiting.cancel()
        gate.open.set()
        time.sleep(0.1)  # the thread comes back before this loop has noticed who left
        started_at = time.monotonic()
        await stopping
        assert time.monotonic() - started_at < 5
    assert gate.ran == [[0]]


@on_loop
async def test_after_the_drain_timeout_what_is_left_fails() -> None:
    gate, observer = Gate(), Notes()
    async with held(gate, observer) as (device, first):
        waiting = device.submit_text(1, 1)
        call = device.call(lambda: None)
        await device.stop(Deadline(0.05))
        for future in (first, waiting, call):
            error = future.exception()
            assert isinstance(error, EngineUnavailable)
            assert error.limit == 0.05
        assert observer.depths[-1] == (0, 0)
    assert gate.ran == [[0]], "the thread ends with the unit it was in"


@on_loop
async def test_a_stop_does_not_keep_those_who_wait_for_room() -> None:
    gate = Gate()
    async with held(gate, max_queue_tokens=10) as (device, _):
        device.submit_text(1, 10)
        entering = asyncio.create_task(device.wait_for_room(10))
        await asyncio.sleep(0.05)
        assert not entering.done()
        device.stop_accepting()
        await entering
        with pytest.raises(EngineUnavailable):
            device.submit_text(2, 10)


@on_loop
async def test_stopping_with_no_patience_still_answers_all() -> None:
    gate = Gate()
    async with held(gate) as (device, first):
        await device.stop(Deadline(0))
        with pytest.raises(EngineUnavailable):
            await first


@pytest.mark.parametrize("death", [SystemExit, KeyboardInterrupt])
def test_the_death_of_the_thread_answers_everyone(death: type[BaseException]) -> None:
    def die(model: str, payloads: Sequence[int]) -> list[int]:
        raise death

    @on_loop
    async def scenario() -> None:
        gate, observer = Gate(die), Notes()
        async with held(gate, observer) as (device, first):
            waiting = device.submit(texts([(number, 500) for number in range(3)]))
            call = device.call(lambda: None)
            gate.open.set()
            errors = await asyncio.gather(first, *waiting, call, return_exceptions=True)
            assert all(isinstance(error, DeviceFailure) for error in errors)
            assert all(isinstance(error.__cause__, death) for error in errors if error)  # type: ignore[union-attr]
            assert len({id(error) for error in errors}) == 5
            assert not device.alive
            assert not device.accepting
            with pytest.raises(EngineUnavailable, match="failed"):
                device.submit_text(1, 1)
            assert observer.depths[-1] == (0, 0)

    scenario()


@on_loop
async def test_an_observer_that_raises_on_the_thread_leaves_nobody_waiting() -> None:
    class Broken(EngineObserver):
        def waited(self, *, seconds: float) -> None:
            raise ValueError("broken")

    async with running(squares, Broken()) as device:
        with pytest.raises(LLNError):
            await device.submit_text(1, 1)
        assert not device.alive


def test_a_loop_closed_without_a_stop_leaves_no_error_behind() -> None:
    gate = Gate()
    device = new_device(gate)

    async def leave_in_a_hurry() -> None:
        await device.start()
        device.submit_text(1, 1)
        await asyncio.to_thread(gate.begun.wait, 20)

    asyncio.run(leave_in_a_hurry())
    device.stop_accepting()
    gate.open.set()
    deadline = time.monotonic() + 10
    while device.alive and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not device.alive


@on_loop
async def test_stop_waits_for_open_sessions() -> None:
    async with running(squares) as device:
        with device.session() as session:
            assert (await session.call(lambda: "first part")).value == "first part"
            stopping = asyncio.create_task(device.stop(Deadline(10)))
            await asyncio.sleep(0.05)
            assert not stopping.done()
            with pytest.raises(EngineUnavailable):
                device.call(print)
            later = await session.call(lambda: "next part")
            assert later.value == "next part"
        await stopping
        with pytest.raises(EngineUnavailable):
            session.call(print)


@on_loop
async def test_a_session_open_for_too_long_is_given_up_by_a_stop() -> None:
    async with running(squares) as device:
        with device.session() as session:
            await session.call(lambda: "first part")
            await device.stop(Deadline(0.05))
            with pytest.raises(EngineUnavailable):
                session.call(print)


@on_loop
async def test_an_idle_thread_says_so_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "IDLE_S", 0.05)
    monkeypatch.setattr(worker, "IDLE_AGAIN_S", 0.1)
    idle: list[int] = []
    async with running(squares, on_idle=lambda: idle.append(1)):
        await asyncio.sleep(0.5)
        assert 2 <= len(idle) <= 5


@on_loop
async def test_an_idle_thread_says_so_once_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "IDLE_S", 0.05)
    idle: list[int] = []
    async with running(squares, on_idle=lambda: idle.append(1)) as device:
        await asyncio.sleep(0.3)
        assert len(idle) == 1
        assert (await device.submit_text(3, 1)).value == 9
        await asyncio.sleep(0.3)
        assert len(idle) == 2


@on_loop
async def test_a_thread_with_work_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "IDLE_S", 0.1)
    idle: list[int] = []
    async with running(squares, on_idle=lambda: idle.append(1)) as device:
        for _ in range(20):
            await device.submit_text(3, 1)
            await asyncio.sleep(0.01)
        assert not idle


@on_loop
async def test_an_idle_thread_survives_what_it_does_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as to look at a file of the system while there are too many open files."""
    monkeypatch.setattr(worker, "IDLE_S", 0.05)

    def fail() -> None:
        raise OSError(errno.EMFILE, "too many open files")

    async with running(squares, on_idle=fail) as device:
        await asyncio.sleep(0.3)
        assert (await device.submit_text(3, 1)).value == 9
        assert "too many open files" in caplog.text
