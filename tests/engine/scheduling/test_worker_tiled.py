"""Tiled texts on the device: a tile at a time, with events, and an end whenever it is wanted."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Sequence

import pytest
import torch

from engine.errors import DeadlineExceeded, DeviceFailure, EngineUnavailable, InsufficientMemory
from engine.scheduling.deadline import Deadline
from engine.scheduling.request import Request, TimedResult
from tests.engine.bridge import Device, Gate, Notes, Tiles, on_loop, running, squares, texts


class HeldTiles(Tiles):
    """Each tile waits for a permit."""

    def __init__(self, payload: int, permits: threading.Semaphore) -> None:
        super().__init__(payload)
        self.permits = permits

    def step(self) -> Sequence[int]:
        assert self.permits.acquire(timeout=20)
        return super().step()


class TiledTexts:
    """Opens texts whose tiles run one permit at a time, and remembers them weakly."""

    def __init__(self) -> None:
        self.permits = threading.Semaphore(0)
        self.opened: list[weakref.ref[HeldTiles]] = []

    def __call__(self, model: str, payload: int) -> HeldTiles:
        tiles = HeldTiles(payload, self.permits)
        self.opened.append(weakref.ref(tiles))
        return tiles

    @property
    def num_alive(self) -> int:
        return sum(ref() is not None for ref in self.opened)


def submit_tiled(
    device: Device, num_tiles: int, events: list[int] | None = None, timeout_s: float | None = None
) -> asyncio.Future[TimedResult[int]]:
    (future,) = device.submit([tiled_text(num_tiles, events)], timeout_s)
    return future


def tiled_text(
    num_tiles: int, events: list[int] | None = None, *, num_bytes: int = 0
) -> Request[int]:
    return Request(
        model="m",
        payload=num_tiles,
        tokens=5_000,
        kind="sweep_tile",
        num_bytes=num_bytes,
        on_event=None if events is None else events.append,
    )


async def settled(condition: object) -> None:
    async with asyncio.timeout(10):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.005)


@on_loop
async def test_a_sweep_tells_of_every_step_before_its_result() -> None:
    observer = Notes()
    async with running(squares, observer) as device:
        events: list[int] = []
        delivered = await submit_tiled(device, 4, events)
        assert events == [1, 2, 3, 4]
    assert (delivered.value, delivered.ranks) == (16, 3)
    assert delivered.queue_s >= 0
    assert [unit[0] for unit in observer.units] == ["sweep_tile"] * 4
    assert len(observer.waits) == 1
    assert observer.num_preemptions == 0


@on_loop
async def test_short_texts_run_between_two_steps() -> None:
    opened, observer = TiledTexts(), Notes()
    async with running(squares, observer, opened) as device:
        long = submit_tiled(device, 3)
        opened.permits.release()
        await settled(lambda: observer.units)
        short = device.submit_text(7, 1)
        opened.permits.release()
        assert (await short).value == 49
        assert not long.done()
        opened.permits.release()
        assert (await long).value == 9
    assert observer.num_preemptions == 1
    assert [unit[0] for unit in observer.units] == [
        "sweep_tile", "sweep_tile", "batch", "sweep_tile"
    ]  # fmt: skip


@on_loop
async def test_who_leaves_a_sweep_is_noticed_at_the_next_step_and_its_memory_freed() -> None:
    opened, observer = TiledTexts(), Notes()
    async with running(squares, observer, opened) as device:
        long = submit_tiled(device, 1_000)
        opened.permits.release(3)
        await settled(lambda: len(observer.units) == 3)
        long.cancel()
        await asyncio.sleep(0)
        opened.permits.release()
        await settled(lambda: opened.num_alive == 0)
        assert (await device.submit_text(2, 1)).value == 4
    assert observer.cancelled_for == ["caller_left"]
    assert [unit[0] for unit in observer.units] == ["sweep_tile"] * 4 + ["batch"]


@on_loop
async def test_an_idle_thread_frees_a_sweep_given_up_while_another_waits_for_memory() -> None:
    opened, observer = TiledTexts(), Notes()
    async with running(squares, observer, opened, max_sweep_bytes=10) as device:
        (first,) = device.submit([tiled_text(9, num_bytes=8)])
        opened.permits.release()
        await settled(lambda: len(observer.units) == 1)
        (second,) = device.submit([tiled_text(2, num_bytes=8)])
        first.cancel()
        opened.permits.release(3)
        assert (await second).value == 4
        await settled(lambda: opened.num_alive == 0)


@on_loop
async def test_a_sweep_ends_at_its_deadline() -> None:
    opened, observer = TiledTexts(), Notes()
    async with running(squares, observer, opened) as device:
        long = submit_tiled(device, 1_000, timeout_s=0.2)
        opened.permits.release(2)
        with pytest.raises(DeadlineExceeded):
            await long
        opened.permits.release()
        await settled(lambda: opened.num_alive == 0)
    assert observer.cancelled_for == ["deadline"]


@on_loop
async def test_a_failing_step_answers_its_caller_alone() -> None:
    class Fails(Tiles):
        def step(self) -> Sequence[int]:
            if self.payload == 13 and self.num_done == 1:
                raise RuntimeError("broken")
            return super().step()

    async with running(squares, None, lambda _, payload: Fails(payload)) as device:
        bad, good = submit_tiled(device, 13), submit_tiled(device, 3)
        with pytest.raises(DeviceFailure, match="RuntimeError"):
            await bad
        assert (await good).value == 9
        assert device.alive


@on_loop
async def test_stopping_finishes_opened_or_fails_them() -> None:
    opened = TiledTexts()
    async with running(squares, None, opened) as device:
        first = submit_tiled(device, 2)
        opened.permits.release(2)
        await device.stop(Deadline(10))
        assert first.result().value == 4
    opened = TiledTexts()
    async with running(squares, None, opened) as device:
        second = submit_tiled(device, 2)
        await settled(lambda: opened.opened)
        await device.stop(Deadline(0.05))
        with pytest.raises(EngineUnavailable):
            await second
        opened.permits.release(2)


@on_loop
async def test_a_batch_that_does_not_fit_in_memory_is_halved_until_it_does() -> None:
    def small_memory(model: str, payloads: Sequence[int]) -> list[int]:
        if len(payloads) > 2:
            raise torch.OutOfMemoryError("no room")
        return squares(model, payloads)

    gate, observer = Gate(small_memory), Notes()
    gate.open.set()
    async with running(gate, observer) as device:
        futures = device.submit(texts([(number, 1) for number in range(8)]))
        assert [(await future).value for future in futures] == [n**2 for n in range(8)]
    assert [len(ran) for ran in gate.ran] == [8, 4, 2, 2, 4, 2, 2]
    assert observer.num_recoveries == 3


@on_loop
@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
async def test_what_does_not_fit_alone_fails_and_the_service_lives(error: Exception) -> None:
    def no_memory(model: str, payloads: Sequence[int]) -> list[int]:
        if 5 in payloads:
            raise error
        return squares(model, payloads)

    async with running(no_memory) as device:
        futures = device.submit(texts([(number, 1) for number in range(8)]))
        answers = await asyncio.gather(*futures, return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        assert len(failed) == 1
        assert isinstance(answers[5], InsufficientMemory)
        assert device.alive
