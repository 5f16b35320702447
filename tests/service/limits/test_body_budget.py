"""The memory of all open requests' bodies together has a bound, and short bodies never wait."""

from __future__ import annotations

import asyncio
import time

import pytest
from starlette.types import Message, Receive, Scope, Send

from engine.errors import QueueFull
from engine.scheduling.observer import EngineObserver
from service.body_budget import (
    FULL,
    LARGE_BYTES_PER_S,
    SHORT_BODY_BYTES,
    TOO_MANY_ARRIVING,
    BodyBudget,
)
from service.http.middleware.body import BodyMiddleware

LARGE = 1_500_000
BUDGET = 4 * LARGE  # room for two large bodies


class _Requests:
    """Requests through the middleware to a handler that holds them until it is told to answer."""

    def __init__(
        self, max_wait_s: float = 60.0, max_waiting: int = 100, body_timeout_s: float = 60.0
    ) -> None:
        self.budget = BodyBudget(BUDGET, max_wait_s, EngineObserver(), max_waiting=max_waiting)
        self.handled: list[int] = []
        self.answer = asyncio.Event()
        self._app = BodyMiddleware(self._handle, 2 * LARGE, body_timeout_s, self.budget)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.handled.append(len((await receive())["body"]))
        await self.answer.wait()

    def send(
        self,
        size: int,
        *,
        media_type: bytes = b"application/json",
        stops_after: int | None = None,
        every_s: float = 0.0,
    ) -> asyncio.Task[None]:
        """A body of so many bytes. It may stop after some pieces, or come with pauses."""
        pieces: list[Message] = [
            {
                "type": "http.request",
                "body": b"x" * min(SHORT_BODY_BYTES, size - at),
                "more_body": at + SHORT_BODY_BYTES < size,
            }
            for at in range(0, size, SHORT_BODY_BYTES)
        ]
        if stops_after is not None:
            del pieces[stops_after:]
        num_pieces, began_at = len(pieces), time.monotonic()

        async def receive() -> Message:
            if not pieces:
                await asyncio.Event().wait()
            is_due_at = began_at + every_s * (num_pieces - len(pieces))
            await asyncio.sleep(is_due_at - time.monotonic())
            return pieces.pop(0)

        async def send(message: Message) -> None: ...

        headers = [(b"content-length", str(size).encode()), (b"content-type", media_type)]
        scope = {"type": "http", "headers": headers}
        return asyncio.create_task(self._app(scope, receive, send))


async def _settle() -> None:
    for _ in range(100):
        await asyncio.sleep(0.001)  # large bodies are read at a bounded speed


def test_large_bodies_wait_unread_and_short_ones_pass() -> None:
    async def run() -> None:
        requests = _Requests()
        large = [requests.send(LARGE) for _ in range(6)]
        await _settle()
        assert requests.handled == [LARGE] * 2
        assert requests.budget.held_bytes == 2 * LARGE
        others = [requests.send(size) for size in (10, SHORT_BODY_BYTES, 2 * SHORT_BODY_BYTES)]
        await _settle()
        assert requests.handled[2:] == [10, SHORT_BODY_BYTES, 2 * SHORT_BODY_BYTES]
        requests.answer.set()
        await asyncio.gather(*large, *others)
        assert requests.handled[5:] == [LARGE] * 4
        assert requests.budget.held_bytes == 0

    asyncio.run(run())


def test_few_bodies_wait_so_that_others_find_a_place() -> None:
    """The server cannot notice that a caller has gone while it does not read the body."""

    async def run() -> None:
        requests = _Requests(max_waiting=3)
        served = [requests.send(LARGE) for _ in range(5)]
        await _settle()
        with pytest.raises(QueueFull, match="3 bodies of about this size wait") as caught:
            await requests.send(LARGE)
        assert (caught.value.code, caught.value.limit, caught.value.actual) == (FULL, 3, 4)
        medium = requests.send(2 * SHORT_BODY_BYTES)
        await _settle()
        assert requests.handled == [LARGE, LARGE, 2 * SHORT_BODY_BYTES], "another lane has room"
        requests.answer.set()
        await asyncio.gather(*served, medium)
        await requests.send(LARGE)
        assert requests.handled[3:] == [LARGE] * 4

    asyncio.run(run())


def test_callers_that_leave_free_their_memory() -> None:
    async def run() -> None:
        requests = _Requests()
        large = [requests.send(LARGE) for _ in range(4)]
        await _settle()
        for task in large[:3]:  # two that are held, one that waits
            task.cancel()
        await _settle()
        assert requests.handled == [LARGE] * 3
        assert requests.budget.held_bytes == LARGE
        large[3].cancel()
        await asyncio.gather(*large, return_exceptions=True)
        assert requests.budget.held_bytes == 0

    asyncio.run(run())


def test_a_wait_that_is_too_long_is_refused() -> None:
    async def run() -> None:
        requests = _Requests(max_wait_s=0.0)
        large = [requests.send(LARGE) for _ in range(2)]
        await _settle()
        with pytest.raises(QueueFull) as refusal:
            await requests.send(LARGE)
        error = refusal.value
        assert (error.code, error.limit, error.actual) == (FULL, 2 * LARGE, 3 * LARGE)
        assert error.retry_after_s == 5.0
        requests.answer.set()
        await asyncio.gather(*large)

    asyncio.run(run())


def test_callers_that_announce_much_and_send_little_lose_their_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where others wait for them, and only there."""
    monkeypatch.setattr("service.http.middleware.body._MAY_LAG_S", 0.3)
    monkeypatch.setattr("service.http.middleware.body._LOOK_EVERY_S", 0.05)

    async def run() -> None:
        requests = _Requests(body_timeout_s=4.0)
        idle = [requests.send(LARGE, stops_after=2) for _ in range(2)]
        await asyncio.sleep(1)
        assert requests.budget.held_bytes == 2 * LARGE  # nobody else wants it
        idle[0].cancel()
        steady = requests.send(LARGE, every_s=0.05)
        await _settle()
        honest = [requests.send(LARGE) for _ in range(2)]
        with pytest.raises(QueueFull, match="others wait for the room") as refused:
            await idle[1]
        error = refused.value
        assert (error.code, error.actual) == (TOO_MANY_ARRIVING, 2 * SHORT_BODY_BYTES)
        requests.answer.set()
        await asyncio.gather(*honest, steady)
        assert requests.handled == [LARGE] * 3
        assert requests.budget.held_bytes == 0

    asyncio.run(run())


def test_texts_that_are_read_while_they_arrive_share_a_bound() -> None:
    budget = BodyBudget(400, 1.0, EngineObserver())
    with budget.hold_pieces() as first, budget.hold_pieces() as second:
        first(60)
        second(40)
        with pytest.raises(QueueFull):
            second(1)
        assert budget.held_bytes == 100
    assert budget.held_bytes == 0


def test_large_bodies_share_a_speed() -> None:
    """Together they leave the event loop to others for some of the time."""

    async def run() -> None:
        budget = BodyBudget(2 * LARGE, 60, EngineObserver())
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        await asyncio.gather(*(budget.pace(LARGE_BYTES_PER_S // 50) for _ in range(4)))
        assert loop.time() - began_at >= 3 / 50 - 0.01  # the last may pass, but no other yet

    asyncio.run(run())
