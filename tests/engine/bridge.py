"""What the tests of the device worker share: a real loop, a real thread, plain functions."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, ParamSpec, TypeAlias

import pytest

from engine.scheduling.deadline import Deadline
from engine.scheduling.executor import TiledWork
from engine.scheduling.observer import EngineObserver
from engine.scheduling.request import Request, TimedResult, UnitKind
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.worker import DeviceWorker

P = ParamSpec("P")
Run: TypeAlias = Callable[[str, Sequence[int]], Sequence[int]]


def on_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test on a loop of its own, where nothing may hang or go wrong unheard."""

    @functools.wraps(test)
    def run_test(*args: P.args, **kwargs: P.kwargs) -> None:
        unheard: list[dict[str, Any]] = []

        async def body() -> None:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: unheard.append(context))
            async with asyncio.timeout(20):
                await test(*args, **kwargs)

        asyncio.run(body())
        gc.collect()
        assert unheard == []

    return run_test


class Notes(EngineObserver):
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.num_accepted = 0
        self.num_preemptions = 0
        self.num_recoveries = 0
        self.rejected_for: list[str] = []
        self.cancelled_for: list[str] = []
        self.depths: list[tuple[int, int]] = []
        self.units: list[tuple[str, str, int, int, bool]] = []
        self.waits: list[float] = []

    def accepted(self, *, model: str, tokens: int) -> None:
        self.num_accepted += 1

    def rejected(self, *, reason: str) -> None:
        self.rejected_for.append(reason)

    def cancelled(self, *, reason: Literal["caller_left", "deadline"]) -> None:
        self.cancelled_for.append(reason)

    def preempted(self) -> None:
        self.num_preemptions += 1

    def recovered_from_oom(self) -> None:
        self.num_recoveries += 1

    def queue_changed(self, *, depth: int, tokens: int) -> None:
        self.depths.append((depth, tokens))

    def unit_finished(
        self,
        *,
        unit: UnitKind,
        model: str,
        sequences: int,
        tokens: int,
        compute_s: float,
        failed: bool,
    ) -> None:
        assert compute_s >= 0
        self.units.append((unit, model, sequences, tokens, failed))

    def waited(self, *, seconds: float) -> None:
        self.waits.append(seconds)


class Gate:
    """A device that runs nothing until it is let, and says when it has begun."""

    def __init__(self, run: Run | None = None) -> None:
        self.ran: list[list[int]] = []
        self.begun = threading.Event()
        self.open = threading.Event()
        self._run = run or squares

    def __call__(self, model: str, payloads: Sequence[int]) -> Sequence[int]:
        self.begun.set()
        assert self.open.wait(20)
        self.ran.append(list(payloads))
        return self._run(model, payloads)


def squares(model: str, payloads: Sequence[int]) -> list[int]:
    return [payload**2 for payload in payloads]


class Tiles:
    """A text of as many tiles as its payload says; its result is the payload's square."""

    num_ranks = 3

    def __init__(self, payload: int) -> None:
        self.payload = payload
        self.num_done = 0

    @property
    def result(self) -> int | None:
        return self.payload**2 if self.num_done == self.payload else None

    def step(self) -> Sequence[int]:
        self.num_done += 1
        return [self.num_done]

    def close(self) -> None:
        """There is nothing to free."""


def tiles(model: str, payload: int) -> Tiles:
    return Tiles(payload)


def text(payload: int, tokens: int, model: str = "m") -> Request[int]:
    return Request(model=model, payload=payload, tokens=tokens)


def texts(items: Iterable[tuple[int, int]]) -> list[Request[int]]:
    """Texts given as payload and tokens."""
    return [text(payload, tokens) for payload, tokens in items]


class Device(DeviceWorker[int, int]):
    """A device whose texts are numbers."""

    def submit_text(
        self, payload: int, tokens: int, timeout_s: float | None = None, model: str = "m"
    ) -> asyncio.Future[TimedResult[int]]:
        (future,) = self.submit([text(payload, tokens, model)], timeout_s)
        return future


def new_device(
    run: Run,
    observer: EngineObserver | None = None,
    open_tiled: Callable[[str, int], TiledWork[int]] = tiles,
    on_idle: Callable[[], None] = lambda: None,
    **limits: Any,
) -> Device:
    defaults = {"max_batch_tokens": 100, "max_batch_sequences": 64, "max_queue_tokens": 100_000}
    scheduler = Scheduler(**{**defaults, **limits})
    return Device(
        run_batch=run,
        open_tiled=open_tiled,
        scheduler=scheduler,
        observer=observer,
        on_idle=on_idle,
    )


@asynccontextmanager
async def running(
    run: Run,
    observer: EngineObserver | None = None,
    open_tiled: Callable[[str, int], TiledWork[int]] = tiles,
    on_idle: Callable[[], None] = lambda: None,
    **limits: Any,
) -> AsyncIterator[Device]:
    device = new_device(run, observer, open_tiled, on_idle, **limits)
    await device.start()
    try:
        yield device
    finally:
        if isinstance(run, Gate):
            run.open.set()
        await device.stop(Deadline(10))
        assert not device.alive


@asynccontextmanager
async def held(
    gate: Gate, observer: EngineObserver | None = None, **limits: Any
) -> AsyncIterator[tuple[Device, asyncio.Future[TimedResult[int]]]]:
    """A device whose thread is in a unit of one text, so that everything else queues."""
    async with running(gate, observer, tiles, **limits) as device:
        first = device.submit_text(0, 1)
        await asyncio.to_thread(gate.begun.wait, 20)
        yield device, first


def count_wakeups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that woke the loop, one entry a wake-up."""
    loop = asyncio.get_running_loop()
    original, wakeups = loop.call_soon_threadsafe, list[int]()

    def counted(callback: Callable[..., object], *args: Any, **kwargs: Any) -> asyncio.Handle:
        wakeups.append(threading.get_ident())
        return original(callback, *args, **kwargs)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    return wakeups
