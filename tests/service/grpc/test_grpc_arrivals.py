"""gRPC messages arrive in turn, and share the budget of bodies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from engine.errors import QueueFull
from engine.scheduling.observer import EngineObserver
from engine.steps import Steps
from service.body_budget import (
    FULL,
    LARGE_BYTES_PER_S,
    SHORT_BODY_BYTES,
    TOO_MANY_ARRIVING,
    BodyBudget,
)
from service.errors import BodyTimeout, InvalidField
from service.fairness import receive_within
from service.grpc.arrivals import MAX_ARRIVING, Arrivals
from service.grpc.streams import StreamTasks, answer_in_order
from service.pb.lln.v1 import embeddings_pb2 as pb

LARGE = 1_500_000
BUDGET = 4 * LARGE  # room for two large messages


class Calls:
    """Calls whose messages arrive when the test says so, and are held until it ends them."""

    def __init__(self, max_wait_s: float = 60.0) -> None:
        self.budget = BodyBudget(BUDGET, max_wait_s, EngineObserver())
        self.arrivals = Arrivals(self.budget, max_wait_s, LARGE)
        self.end = asyncio.Event()
        self.num_asked = self.num_received = 0

    def send(
        self, data: bytes, arrives: asyncio.Event | None = None, sender: str = "somebody"
    ) -> asyncio.Task[None]:
        async def messages() -> AsyncIterator[bytes]:
            self.num_asked += 1
            if arrives is not None:
                await arrives.wait()
            yield data

        async def call() -> None:
            async with AsyncExitStack() as held:
                await self.arrivals.receive(messages(), held, sender)
                self.num_received += 1
                await self.end.wait()

        return asyncio.create_task(call())


async def _never() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


def test_large_messages_share_the_budget_and_short_ones_pass() -> None:
    async def run() -> None:
        calls = Calls()
        large = [calls.send(bytes(LARGE)) for _ in range(3)]
        short = calls.send(bytes(SHORT_BODY_BYTES))
        async with asyncio.timeout(5):
            while calls.num_received < 3:
                await asyncio.sleep(0.01)
        assert calls.budget.held_bytes == 2 * LARGE
        calls.end.set()
        await asyncio.gather(*large, short)
        assert calls.budget.held_bytes == 0

    asyncio.run(run())


def test_messages_that_take_long_go_when_others_wait() -> None:
    async def run() -> None:
        calls, never = Calls(), asyncio.Event()
        slow = [calls.send(b"", never) for _ in range(MAX_ARRIVING)]
        await asyncio.sleep(0.2)
        assert not any(task.done() for task in slow)  # nobody else wanted their places
        calls.end.set()
        began_at = time.monotonic()
        await asyncio.gather(*(calls.send(b"short") for _ in range(3 * MAX_ARRIVING)))
        assert time.monotonic() - began_at < 5
        gone = [task for task in slow if task.done()]
        assert gone
        refusal = gone[0].exception()
        assert isinstance(refusal, QueueFull)
        assert (refusal.code, refusal.limit) == (TOO_MANY_ARRIVING, MAX_ARRIVING)
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        # All places are free again.
        await asyncio.gather(*(calls.send(b"short") for _ in range(2 * MAX_ARRIVING)))

    asyncio.run(run())


def test_more_large_messages_than_places_are_refused_not_kept() -> None:
    async def run() -> None:
        calls = Calls()
        large = [calls.send(bytes(LARGE)) for _ in range(2 * MAX_ARRIVING)]
        await asyncio.sleep(0.5)
        assert calls.budget.held_bytes == 2 * LARGE
        refused = [task for task in large if task.done()]
        assert len(refused) >= MAX_ARRIVING - 2
        assert all(isinstance(task.exception(), QueueFull) for task in refused)
        calls.end.set()
        await asyncio.gather(*large, return_exceptions=True)
        assert calls.budget.held_bytes == 0

    asyncio.run(run())


def test_a_message_without_room_is_refused_for_the_room_not_for_its_time() -> None:
    async def run() -> None:
        calls = Calls(max_wait_s=0.2)
        large = [calls.send(bytes(LARGE)) for _ in range(3)]
        done, held = await asyncio.wait(large, return_when=asyncio.FIRST_COMPLETED)
        refusal = done.pop().exception()
        assert isinstance(refusal, QueueFull)
        assert (refusal.code, refusal.limit, refusal.actual) == (FULL, BUDGET // 2, 3 * LARGE)
        calls.end.set()
        await asyncio.gather(*held)

    asyncio.run(run())


def test_connections_that_sent_short_messages_do_not_wait_behind_others() -> None:
    """Messages of unknown size are asked for at a rate: here one in a quarter of an hour."""

    async def run() -> None:
        calls, never = Calls(), asyncio.Event()
        calls.arrivals = Arrivals(calls.budget, 60.0, 1_000 * LARGE_BYTES_PER_S)
        calls.end.set()
        await calls.send(b"short", sender="known")
        unknown = [calls.send(b"", never, sender=f"unknown {number}") for number in range(6)]
        await asyncio.sleep(0)
        await calls.send(b"short", sender="known")
        assert calls.num_received == 2
        num_unknown = calls.num_asked - 2
        assert 0 < num_unknown < len(unknown)
        # One that is short lets the next one ask; one that is large makes its connection wait.
        never.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert calls.num_received == 2 + len(unknown)
        await calls.send(bytes(LARGE), sender="known")
        again = [calls.send(b"", asyncio.Event(), sender="known") for _ in range(6)]
        await asyncio.sleep(0)
        assert calls.num_asked < 3 + len(unknown) + len(again)
        for task in again:
            task.cancel()
        await asyncio.gather(*again, return_exceptions=True)

    asyncio.run(run())


def test_a_caller_that_leaves_gives_its_turn_back() -> None:
    async def run() -> None:
        calls, never = Calls(), asyncio.Event()
        calls.arrivals = Arrivals(calls.budget, 60.0, 1_000 * LARGE_BYTES_PER_S)
        calls.end.set()
        unknown = [calls.send(b"", never, sender=f"unknown {number}") for number in range(3)]
        await asyncio.sleep(0)
        for task in unknown:
            task.cancel()
        await asyncio.gather(*unknown, return_exceptions=True)
        async with asyncio.timeout(5):
            await calls.send(b"short", sender="another")

    asyncio.run(run())


def test_a_stream_that_waits_for_its_turn_is_not_blamed_for_the_wait() -> None:
    async def read(arrivals: Arrivals, sender: str) -> None:
        async for _ in receive_within(arrivals.receive_each(_never(), sender), 1.0):
            pass

    async def run() -> None:
        budget = BodyBudget(BUDGET, 1.0, EngineObserver())
        arrivals = Arrivals(budget, 1.0, 1_000 * LARGE_BYTES_PER_S)
        reads = [read(arrivals, f"unknown {number}") for number in range(4)]
        errors = await asyncio.gather(*reads, return_exceptions=True)
        asked, waited = errors[:2], errors[-1]
        assert all(isinstance(error, BodyTimeout) for error in asked)
        assert isinstance(waited, QueueFull)
        assert (waited.code, waited.limit) == (TOO_MANY_ARRIVING, 0.5)

    asyncio.run(run())


def test_a_message_that_never_comes_times_out() -> None:
    async def run() -> None:
        calls = Calls(max_wait_s=0.05)
        with pytest.raises(BodyTimeout):
            await calls.send(b"", asyncio.Event())

    asyncio.run(run())


def test_a_call_without_a_message_is_an_error() -> None:
    async def run() -> None:
        async def nothing() -> AsyncIterator[bytes]:
            return
            yield b""

        async with AsyncExitStack() as held:
            with pytest.raises(InvalidField) as error:
                await Calls().arrivals.receive(nothing(), held, "somebody")
        assert error.value.code == "missing_message"

    asyncio.run(run())


def test_a_stream_is_not_read_further_while_its_messages_find_no_room() -> None:
    async def run() -> None:
        calls, num_read, may_answer = Calls(), 0, asyncio.Event()
        written: list[str] = []

        async def requests() -> AsyncIterator[pb.EmbedStreamRequest]:
            nonlocal num_read
            for number in range(4):
                num_read += 1
                text = "x" * (LARGE if number else 1)
                yield pb.EmbedStreamRequest(id=str(number), input=pb.Input(text=text))

        async def answer(request: pb.EmbedStreamRequest) -> str:
            await may_answer.wait()
            return request.id

        async def write(number: str) -> None:
            written.append(number)

        stream = asyncio.create_task(
            answer_in_order(
                requests(),
                answer=answer,
                write=write,
                hold=calls.arrivals.hold,
                stream_tasks=StreamTasks(),
                idle_timeout_s=60,
            )
        )
        for _ in range(200):
            await asyncio.sleep(0)
        # The two in the budget would be a little larger than it, so the second one waits.
        assert num_read == 3
        assert calls.budget.held_bytes < 2 * LARGE
        may_answer.set()
        await stream
        assert written == ["0", "1", "2", "3"]
        assert calls.budget.held_bytes == 0

    asyncio.run(run())


def test_between_large_messages_others_have_their_turn() -> None:
    """Each leaves the event loop to others for as long as it held it."""
    order: list[str] = []

    def decode(data: bytes) -> Steps[int]:
        order.append("large" if len(data) > SHORT_BODY_BYTES else "short")
        time.sleep(0.02)
        yield from ()
        return len(data)

    async def run() -> None:
        arrivals = Arrivals(BodyBudget(2**30, 60, EngineObserver()), 60, 2**20)
        large = [arrivals.decode_in_turn(decode, bytes(SHORT_BODY_BYTES + 1)) for _ in range(3)]
        decoding = asyncio.gather(*large)
        await asyncio.sleep(0)  # they have begun
        for _ in range(2):
            await arrivals.decode_in_turn(decode, b"short")
        await decoding

    asyncio.run(run())
    assert order == ["large", "short", "short", "large", "large"]
