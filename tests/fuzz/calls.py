"""Calls to every gRPC method that reflection tells of, with good, odd and broken messages."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from tests.fuzz.messages import damaged, made_up

_AT_ONCE = 8
_DEADLINE_S = 60.0
_WATCHED_S = 0.2
_MAX_ANSWERS = 50
_ALLOWED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


class Result(NamedTuple):
    method: str
    code: grpc.StatusCode
    details: str
    requests: tuple[bytes, ...]

    @property
    def is_failure(self) -> bool:
        watched = self.method.endswith("/Watch") and self.code is grpc.StatusCode.DEADLINE_EXCEEDED
        return not watched and self.code not in _ALLOWED


class _WithKey(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[type-arg]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[type-arg]
    grpc.StreamStreamClientInterceptor,  # type: ignore[type-arg]
):
    """Sends a key with every call."""

    def __init__(self, key: str) -> None:
        self._metadata = ("x-api-key", key)

    def intercept_unary_unary(self, continuation: Any, call: Any, request: Any) -> Any:
        return continuation(self._keyed(call), request)

    def intercept_unary_stream(self, continuation: Any, call: Any, request: Any) -> Any:
        return continuation(self._keyed(call), request)

    def intercept_stream_stream(self, continuation: Any, call: Any, requests: Any) -> Any:
        return continuation(self._keyed(call), requests)

    def _keyed(self, call: Any) -> Any:
        return call._replace(metadata=[*(call.metadata or ()), self._metadata])


def methods_of(channel: grpc.Channel) -> list[MethodDescriptor]:
    """All methods of all services, in the order of their names."""
    database = ProtoReflectionDescriptorDatabase(channel)
    pool = DescriptorPool(database)
    services = [pool.FindServiceByName(name) for name in sorted(database.get_services())]
    return [method for service in services for method in service.methods]


def fuzz(address: str, num_cases: int, seed: int, *, key: str) -> Iterator[Result]:
    """So many calls, spread evenly over the methods; the same for the same seed."""
    with grpc.insecure_channel(address) as bare, ThreadPoolExecutor(_AT_ONCE) as pool:
        channel = grpc.intercept_channel(bare, _WithKey(key))
        methods = methods_of(channel)

        def one(number: int) -> Result:
            method = methods[number % len(methods)]
            requests = tuple(_requests(method, random.Random(f"{seed}/{number}")))
            return _call(channel, method, requests)

        yield from pool.map(one, range(num_cases))


def _requests(method: MethodDescriptor, chance: random.Random) -> Iterator[bytes]:
    num_requests = chance.choice((0, 1, 2, 7)) if method.client_streaming else 1
    for _ in range(num_requests):
        data = made_up(method.input_type, chance).SerializeToString()
        yield damaged(data, chance) if chance.random() < 0.3 else data


def _call(channel: grpc.Channel, method: MethodDescriptor, requests: tuple[bytes, ...]) -> Result:
    name = f"/{method.containing_service.full_name}/{method.name}"
    deadline_s = _WATCHED_S if method.name == "Watch" else _DEADLINE_S
    try:
        if not method.server_streaming:
            channel.unary_unary(name, None, None)(requests[0], timeout=deadline_s)
            return Result(name, grpc.StatusCode.OK, "", requests)
        answers: Any
        if method.client_streaming:
            answers = channel.stream_stream(name, None, None)(iter(requests), timeout=deadline_s)
        else:
            answers = channel.unary_stream(name, None, None)(requests[0], timeout=deadline_s)
        for _ in islice(answers, _MAX_ANSWERS):
            pass
        answers.cancel()
        return Result(name, grpc.StatusCode.OK, "", requests)
    except grpc.RpcError as error:
        return Result(name, error.code(), error.details() or "", requests)


def tally(results: list[Result]) -> str:
    """A line a method: how many calls ended with which status."""
    counts: dict[str, Counter[str]] = {}
    for result in results:
        counts.setdefault(result.method, Counter())[result.code.name] += 1
    width = max(map(len, counts))
    return "\n".join(
        f"{method:<{width}}  " + ", ".join(f"{code} {n}" for code, n in sorted(by_code.items()))
        for method, by_code in sorted(counts.items())
    )
