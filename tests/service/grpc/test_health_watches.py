"""Health watches need no key, so they have limits of their own; probes go on beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from tests.service.outside import metric, wait_for
from tests.service.stubs import MODEL, health_stub

PER_CONNECTION, IN_ALL = 2, 3
SERVING = health_pb2.HealthCheckResponse.SERVING
REQUEST = health_pb2.HealthCheckRequest()


@pytest.fixture(scope="module")
def watched(launch_server: Any) -> Any:
    return launch_server(
        LLN_MODELS=MODEL,
        LLN_API_KEYS="0123456789abcdef",
        LLN_MAX_STREAMS_PER_CONNECTION=str(16 * PER_CONNECTION),
        LLN_MAX_OPEN_REQUESTS=str(IN_ALL),
    )


@contextmanager
def connection(server: Any) -> Iterator[grpc.Channel]:
    """Connections of the same address are shared otherwise."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(server.grpc_address, options=options) as channel:
        yield channel


def open_watch(channel: grpc.Channel) -> Any:
    watch = health_stub(channel).Watch(REQUEST, timeout=60)
    assert next(watch).status == SERVING
    return watch


def refusal(channel: grpc.Channel) -> tuple[str, str, str]:
    with pytest.raises(grpc.RpcError) as raised:
        open_watch(channel)
    failure: Any = raised.value
    assert failure.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    fields = dict(failure.trailing_metadata())
    return fields["lln-error-code"], fields["lln-error-limit"], failure.details()


def eventually_open(channel: grpc.Channel) -> Any:
    """A watch. The server may not have noticed yet that earlier ones ended."""
    found: list[Any] = []

    def opens() -> bool:
        with suppress(grpc.RpcError):
            found.append(open_watch(channel))
        return bool(found)

    wait_for(opens, "a place for a watch")
    return found[0]


def test_watches_of_one_connection_are_limited(watched: Any) -> None:
    with connection(watched) as busy, connection(watched) as other:
        open_watches = [open_watch(busy) for _ in range(PER_CONNECTION)]
        code, limit, message = refusal(busy)
        assert (code, limit) == ("too_many_watches", str(PER_CONNECTION))
        assert f"of one connection are open, and the limit is {PER_CONNECTION}" in message
        # Probes go on over the same connection, and watches over another.
        assert health_stub(busy).Check(REQUEST).status == SERVING
        open_watch(other).cancel()
        open_watches.pop().cancel()
        eventually_open(busy).cancel()


def test_watches_of_all_connections_are_limited(watched: Any) -> None:
    with ExitStack() as opened:
        *others, last = [opened.enter_context(connection(watched)) for _ in range(IN_ALL + 1)]
        held = list(map(eventually_open, others))  # a watch ends when nobody holds it
        code, limit, message = refusal(last)
        assert (code, limit) == ("too_many_watches", str(IN_ALL))
        assert "of all connections" in message
        assert health_stub(last).Check(REQUEST).status == SERVING
        for watch in held:
            watch.cancel()
    assert metric(watched.http_url, 'lln_rejected_total{reason="too_many_watches"}') > 0
