"""gRPC without a server: packing vectors, error metadata, ordered streams."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
from grpc.aio import InternalError

from engine.errors import EngineUnavailable, InvalidInput, LLNError, QueueFull
from engine.types import Vector
from service.body_budget import BodyBudget
from service.errors import ERROR_TABLE, BodyTimeout
from service.fairness import cooperatively
from service.grpc.arrivals import Arrivals
from service.grpc.errors import error_message, error_metadata
from service.grpc.handlers import MethodHandlers
from service.grpc.streams import StreamTasks, answer_in_order
from service.grpc.vectors import VectorPacker
from service.metrics import Metrics
from service.pb.lln.v1 import embeddings_pb2
from service.security import ApiKeys, RequestLimit
from tests.model_info import MODEL

FORMATS = [
    (embeddings_pb2.VECTOR_FORMAT_FLOAT32, "<f4", 0.0),
    (embeddings_pb2.VECTOR_FORMAT_FLOAT16, "<f2", 1e-3),
    (embeddings_pb2.VECTOR_FORMAT_INT8, "i1", 0.5 / 127),
]


def packer(form: embeddings_pb2.VectorFormat, *, normalize: bool) -> VectorPacker:
    return VectorPacker.of(embeddings_pb2.EmbedOptions(format=form, normalize=normalize), MODEL)


@pytest.mark.parametrize(("form", "dtype", "error"), FORMATS)
@pytest.mark.parametrize("shape", [(1,), (384,), (7, 60)])
def test_packed_vectors_round_trip(
    form: embeddings_pb2.VectorFormat, dtype: str, error: float, shape: tuple[int, ...]
) -> None:
    rows: Vector = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    message = packer(form, normalize=False).message(rows)
    numbers = np.frombuffer(message.data, dtype).reshape(tuple(message.shape)).astype(np.float32)
    if message.scales:
        numbers *= np.array(message.scales, np.float32).reshape(*shape[:-1], 1)

    assert np.abs(numbers - rows).max() <= error * np.abs(rows).max() * 1.001


def test_int8_of_zeros() -> None:
    zeros = np.zeros((2, 3), np.float32)
    message = packer(embeddings_pb2.VECTOR_FORMAT_INT8, normalize=False).message(zeros)
    assert message.data == bytes(6)
    assert list(message.scales) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("form", "dtype", "zero"),
    [
        (embeddings_pb2.VECTOR_FORMAT_INT8, "i1", 0),
        (embeddings_pb2.VECTOR_FORMAT_UINT8, "u1", 128),
    ],
)
def test_codes_of_unit_vectors_have_one_scale(
    form: embeddings_pb2.VectorFormat, dtype: str, zero: int
) -> None:
    rows: Vector = np.random.default_rng(0).standard_normal((3, 384)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    message = packer(form, normalize=True).message(rows)
    codes = np.frombuffer(message.data, dtype).reshape(rows.shape).astype(np.float32) - zero

    assert list(message.scales) == [pytest.approx(MODEL.int8_range / 127)] * 3
    assert np.abs(codes * message.scales[0] - rows).max() <= message.scales[0] * 0.501


def test_error_metadata_names_value_and_limit() -> None:
    error = InvalidInput("no", code="too_many", param="input[3]", limit=3, actual="50 % ü\n")

    assert dict(error_metadata(error)) == {
        "lln-error-code": "too_many",
        "lln-error-param": "input[3]",
        "lln-error-limit": "3",
        "lln-error-actual": "50 %25 %C3%BC%0A",
    }
    assert dict(error_metadata(QueueFull("full", retry_after_s=1.5)))["lln-retry-after-s"] == "1.5"


@pytest.mark.parametrize("row", ERROR_TABLE, ids=lambda row: row.error.__name__)
def test_error_message_has_the_status_of_the_table(row: Any) -> None:
    message = error_message(row.error("text", actual=7))

    assert message.status == row.grpc_code.value[0] != grpc.StatusCode.OK.value[0]
    assert (message.code, message.message, message.actual) == (row.error.code, "text", "7")
    assert not message.HasField("limit")


def test_error_message_is_bounded() -> None:
    message = error_message(LLNError("x" * 10**6, actual="y" * 10**6))
    assert len(message.message) + len(message.actual) < 1_000


class Pipe:
    """A stand-in for a client: a source of numbers and a sink for answers."""

    def __init__(self, num_requests: int) -> None:
        self.num_requests = num_requests
        self.num_read = 0
        self.written: list[int] = []
        self.taking = asyncio.Event()
        self.stays_open = False

    async def requests(self) -> AsyncIterator[int]:
        for number in range(self.num_requests):
            self.num_read += 1
            yield number
        if self.stays_open:
            await asyncio.Event().wait()

    async def write(self, answer: int) -> None:
        await self.taking.wait()
        self.written.append(answer)


async def late_for_even_numbers(number: int) -> int:
    await asyncio.sleep(0.02 if number % 2 == 0 else 0)
    return number


async def settle() -> None:
    await asyncio.sleep(0.1)


def run(pipe: Pipe, stream_tasks: StreamTasks, idle_timeout_s: float = 60) -> asyncio.Task[None]:
    return asyncio.create_task(
        answer_in_order(
            pipe.requests(),
            answer=late_for_even_numbers,
            write=pipe.write,
            stream_tasks=stream_tasks,
            max_in_flight=4,
            idle_timeout_s=idle_timeout_s,
        )
    )


def test_cooperatively_lets_other_tasks_run() -> None:
    async def scenario() -> int:
        other_steps, done = 0, asyncio.Event()

        async def others() -> None:
            nonlocal other_steps
            while not done.is_set():
                other_steps += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        rows = np.zeros((2_000, 384), np.float32)
        made = [state async for state in cooperatively(row.tolist() for row in rows)]
        done.set()
        await other
        assert len(made) == 2_000
        return other_steps

    assert asyncio.run(scenario()) > 1


def test_answer_in_order_reads_no_further_than_its_bound() -> None:
    async def scenario() -> None:
        pipe = Pipe(50)
        answering = run(pipe, StreamTasks())
        await settle()
        assert pipe.num_read == 4
        assert pipe.written == []
        pipe.taking.set()
        await answering
        assert pipe.written == list(range(50))

    asyncio.run(scenario())


def test_answer_in_order_finishes_what_it_read_when_interrupted() -> None:
    async def scenario() -> None:
        pipe, stream_tasks = Pipe(3), StreamTasks()
        pipe.stays_open = True
        answering = run(pipe, stream_tasks)
        await settle()
        stream_tasks.interrupt()
        pipe.taking.set()
        with pytest.raises(EngineUnavailable):
            await answering
        assert pipe.written == [0, 1, 2]
        with pytest.raises(EngineUnavailable):  # a stream that came too late
            await run(Pipe(3), stream_tasks)

    asyncio.run(scenario())


def test_answer_in_order_times_out_idle_clients_only() -> None:
    async def scenario() -> None:
        pipe = Pipe(3)
        pipe.stays_open = True
        answering = run(pipe, StreamTasks(), idle_timeout_s=0.05)
        await settle()
        assert not answering.done()  # the client still waits for its answers
        pipe.taking.set()
        with pytest.raises(BodyTimeout, match=r"no more of the request arrived within 0\.05 s"):
            await answering
        assert pipe.written == [0, 1, 2]

    asyncio.run(scenario())


def test_answer_in_order_leaves_no_task_behind_when_cancelled() -> None:
    async def scenario() -> None:
        pipe = Pipe(50)
        answering = run(pipe, StreamTasks())
        await settle()
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        await settle()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_answer_in_order_leaves_nothing_unawaited_when_writing_fails() -> None:
    """A request arrives while the failed stream is cleaned up."""

    async def scenario() -> None:
        failing = asyncio.Event()

        async def requests() -> AsyncIterator[int]:
            yield 0
            await failing.wait()
            yield 1

        async def write(_: int) -> None:
            failing.set()
            raise LLNError("the client left")

        with pytest.raises(LLNError, match="the client left"):
            await answer_in_order(
                requests(),
                answer=late_for_even_numbers,
                write=write,
                stream_tasks=StreamTasks(),
                max_in_flight=4,
                idle_timeout_s=60,
            )
        await settle()

    asyncio.run(scenario())
    gc.collect()  # pytest reports un-awaited coroutines when they are collected


class Gone:
    """The context of a client that left before anything was sent."""

    def __init__(self, failure: BaseException, seconds_left: float) -> None:
        self._failure = failure
        self._seconds_left = seconds_left

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def peer(self) -> str:
        return "ipv4:10.0.0.7:4711"

    def time_remaining(self) -> float:
        return self._seconds_left

    async def send_initial_metadata(self, pairs: object) -> None:
        raise self._failure

    async def abort(self, *status: object) -> None:
        raise InternalError("the client is gone")


@pytest.mark.parametrize(
    ("failure", "seconds_left", "code"),
    [
        (asyncio.CancelledError(), 9.0, "cancelled"),
        (asyncio.CancelledError(), 0.01, "deadline_exceeded"),
        (InternalError("the call is over"), 9.0, "cancelled"),
    ],
)
def test_a_client_that_leaves_before_the_first_byte_is_counted(
    failure: BaseException, seconds_left: float, code: str
) -> None:
    metrics = Metrics()
    limit = RequestLimit(1, metrics)
    arrivals = Arrivals(BodyBudget(1000, 1.0, metrics), 1.0, 100)
    calls = MethodHandlers(
        metrics, arrivals, ApiKeys(), limit, limit, max_message_bytes=100, max_answer_s=1.0
    )
    context: Any = Gone(failure, seconds_left)

    async def call() -> None:
        with pytest.raises(asyncio.CancelledError):
            async with calls._call("a.Service/Method", context):
                pytest.fail("the method ran after its client left")

    asyncio.run(call())
    assert f'code="{code}",method="a.Service/Method",protocol="grpc"}} 1.0' in (
        metrics.expose().body.decode()
    )
