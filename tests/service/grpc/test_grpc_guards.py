"""A gRPC server refuses calls, and answers probes, before messages have arrived."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.body_budget import (
    LARGE_BYTES_PER_S,
)
from tests.service.conftest import RunningServer, StartServer

KEY = (("x-api-key", "a-key-of-sixteen-characters"),)


@pytest.fixture(scope="module")
def guarded(launch_server: StartServer) -> RunningServer:
    return launch_server(
        LLN_API_KEYS="a-key-of-sixteen-characters",
        LLN_MODELS="sentence-transformers/all-MiniLM-L6-v2",
        LLN_MAX_OPEN_STREAMS="1",
        # A message of unknown size is then asked for every twenty seconds.
        LLN_MAX_MESSAGE_BYTES=str(20 * LARGE_BYTES_PER_S),
        LLN_MAX_BODY_BYTES=str(20 * LARGE_BYTES_PER_S),
    )


async def _never() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


def _no_messages_yet(until: float) -> Iterator[bytes]:
    while time.monotonic() < until:
        time.sleep(0.05)
    yield b""


def test_a_call_without_a_key_is_refused_before_its_message(guarded: RunningServer) -> None:
    with grpc.insecure_channel(guarded.grpc_address) as opened:
        channel: Any = opened
        began_at = time.monotonic()
        embed = channel.stream_unary("/lln.v1.Embeddings/Embed")
        with pytest.raises(grpc.RpcError) as refusal:
            embed(_no_messages_yet(began_at + 20), timeout=60)
    assert refusal.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert time.monotonic() - began_at < 15


def test_a_caller_that_leaves_before_its_message_did_not_forget_it(
    guarded: RunningServer,
) -> None:
    async def leave() -> None:
        async with grpc.aio.insecure_channel(guarded.grpc_address) as opened:
            channel: Any = opened
            tokenize = channel.stream_unary("/tei.v1.Tokenize/Tokenize")
            call = tokenize(_never(), metadata=KEY, timeout=1)
            with pytest.raises(grpc.RpcError):
                await call

    asyncio.run(leave())
    pattern = re.compile('"method":"tei.v1.Tokenize/Tokenize","code":"([a-z_]+)"')
    deadline = time.monotonic() + 20
    while not (found := pattern.findall(guarded.log())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert found == ["deadline_exceeded"]


def test_a_probe_does_not_wait_behind_messages_of_others(guarded: RunningServer) -> None:
    async def probe() -> None:
        async with (
            grpc.aio.insecure_channel(guarded.grpc_address) as opened,
            # Connections of the same address are shared otherwise.
            grpc.aio.insecure_channel(
                guarded.grpc_address, options=[("grpc.use_local_subchannel_pool", 1)]
            ) as prober,
        ):
            channel: Any = opened
            embed = channel.stream_unary("/lln.v1.Embeddings/Embed")
            stalled = [embed(_never(), metadata=KEY) for _ in range(4)]
            for call in stalled:
                await call.initial_metadata()  # it has passed the checks, and waits
            request = health_pb2.HealthCheckRequest()
            answer = await health_pb2_grpc.HealthStub(prober).Check(request, timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            for call in stalled:
                call.cancel()

    asyncio.run(probe())


def test_open_streams_are_limited(guarded: RunningServer) -> None:
    with grpc.insecure_channel(guarded.grpc_address) as opened:
        channel: Any = opened
        stream = channel.stream_stream("/lln.v1.Embeddings/EmbedStream")
        first = stream(_no_messages_yet(time.monotonic() + 20), metadata=KEY)
        assert first.initial_metadata()  # it is open
        with pytest.raises(grpc.RpcError) as refusal:
            next(stream(iter(()), metadata=KEY))
        first.cancel()
    failure: Any = refusal.value
    assert failure.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert dict(failure.trailing_metadata())["lln-error-code"] == "too_many_streams"
