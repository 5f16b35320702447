"""What listens for gRPC before replicas: callers without a key, and streams that say nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from grpc import StatusCode, aio

from engine.errors import EngineUnavailable
from service.environment import load_settings
from service.grpc.listening import server_options
from service.replicas.front import GrpcFront, _Everything
from service.replicas.price import price_of_message
from service.settings import Settings

KEY = "0123456789abcdef"
SILENCE_S = 0.3


async def nothing() -> AsyncIterator[bytes]:
    await asyncio.sleep(60)
    yield b""


async def a_message() -> AsyncIterator[bytes]:
    yield b""


def refusal(
    method: str,
    *metadata: tuple[str, str],
    messages: Callable[[], AsyncIterator[bytes]] = nothing,
    **settings: Any,
) -> aio.AioRpcError:
    """Of a call that sends no message, unless it is given; there are no replicas."""

    async def ask() -> aio.AioRpcError:
        async with served(body_timeout_s=SILENCE_S, **settings) as channel:
            call = channel.stream_unary(method, None, None)
            with pytest.raises(aio.AioRpcError) as caught:
                await call(messages(), metadata=metadata, timeout=30)
            return caught.value

    return asyncio.run(ask())


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[Any]:
    """A connection to a front without replicas."""
    chosen = Settings(**settings)
    front = GrpcFront(chosen)
    server = aio.server(handlers=[_Everything(front._forward)], options=server_options(chosen))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(0)


@pytest.mark.parametrize("method", ["/lln.v1.Embeddings/Embed", "/lln.v1.Embeddings/EmbedStream"])
def test_a_caller_without_a_key_sends_no_message(method: str) -> None:
    assert refusal(method, api_keys=KEY).code() == StatusCode.UNAUTHENTICATED
    assert refusal(method, ("x-api-key", "wrong"), api_keys=KEY).code() == (
        StatusCode.UNAUTHENTICATED
    )


def test_a_stream_that_says_nothing_ends() -> None:
    for found in (
        refusal("/lln.v1.Embeddings/EmbedStream", ("x-api-key", KEY), api_keys=KEY),
        refusal("/grpc.health.v1.Health/Watch", api_keys=KEY),
    ):
        assert found.code() == StatusCode.DEADLINE_EXCEEDED
        assert code_and_limit(found) == ("body_timeout", str(SILENCE_S))


def test_the_wait_for_a_replica_is_told_as_long_as_it_was() -> None:
    found = refusal("/lln.v1.Embeddings/Embed", messages=a_message, request_timeout_s=0.2)
    assert found.details() == "no replica was ready within 0.2 s"
    assert code_and_limit(found) == ("no_replica", "0.2")


def test_a_stop_ends_the_wait_for_a_replica() -> None:
    """Serve stops the replicas at the same time, so none will come."""

    async def wait() -> None:
        front = GrpcFront(load_settings())
        price = price_of_message("/lln.v1.Embeddings/Embed", b"")
        choosing = asyncio.create_task(front._choose(price, set()))
        await asyncio.sleep(0)
        front.__del__()
        with pytest.raises(EngineUnavailable, match="the replicas start or stop"):
            await asyncio.wait_for(choosing, 5)

    asyncio.run(wait())


def test_the_watches_of_a_connection_are_limited_where_callers_connect() -> None:
    """The replicas could not tell callers apart."""

    async def ask() -> aio.AioRpcError:
        async with served(max_streams_per_connection=16) as channel:
            watch = channel.stream_stream("/grpc.health.v1.Health/Watch", None, None)
            calls = [watch(a_message(), timeout=30) for _ in range(2)]
            # The one that has a place waits for a replica.
            reads = {asyncio.ensure_future(call.read()) for call in calls}
            [refused], _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
            for call in calls:
                call.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
            failure = refused.exception()
            assert isinstance(failure, aio.AioRpcError)
            return failure

    found = asyncio.run(ask())
    assert found.code() == StatusCode.RESOURCE_EXHAUSTED
    assert code_and_limit(found) == ("too_many_watches", "1")


def code_and_limit(found: aio.AioRpcError) -> tuple[str, str]:
    metadata: dict[str, Any] = dict(found.trailing_metadata() or ())  # type: ignore[arg-type]
    return metadata["lln-error-code"], metadata["lln-error-limit"]
