"""Decodes protobuf messages in steps. The handler answers what cannot be decoded."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from engine.errors import InvalidInput
from engine.steps import Steps, in_slices
from service.body_budget import SHORT_BODY_BYTES
from service.errors import BodyTooLarge, UnreadableBody
from service.grpc.wire import excess_steps

_STEP_S = 0.004
"""How long large messages are looked at without a pause."""

MessageT = TypeVar("MessageT", bound=Message)


class Undecodable(NamedTuple):
    """Stands for a request that cannot be decoded. If a decoder raises, grpc reports UNKNOWN."""

    error: InvalidInput


def decoder(
    message: type[MessageT], max_bytes: int
) -> Callable[[bytes], Steps[MessageT | Undecodable]]:
    """Returns what decodes a message, in steps."""

    def decode(data: bytes) -> Steps[MessageT | Undecodable]:
        if len(data) > max_bytes:
            return Undecodable(
                BodyTooLarge(
                    f"the message has {len(data)} bytes, and the limit is {max_bytes}",
                    limit=max_bytes,
                    actual=len(data),
                )
            )
        if len(data) > SHORT_BODY_BYTES:
            excess = yield from in_slices(excess_steps(data, message), _STEP_S)
            if excess is not None:
                return Undecodable(
                    UnreadableBody(excess.message, code=excess.code, limit=excess.limit)
                )
            yield
        try:
            return message.FromString(data)
        except DecodeError as error:
            name = message.DESCRIPTOR.name
            return Undecodable(
                UnreadableBody(
                    f"the request is not a valid {name} message: {error}", code="invalid_message"
                )
            )

    return decode


def decoded(request: MessageT | Undecodable) -> MessageT:
    """Returns the request, or raises the error that it could not be decoded with."""
    if isinstance(request, Undecodable):
        raise request.error
    return request


async def decode_each(
    requests: AsyncIterable[MessageT | Undecodable],
) -> AsyncIterator[MessageT]:
    async for request in requests:
        yield decoded(request)
