"""What the service uses of grpc's context of a call: metadata, the deadline, and sending."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

from google.protobuf.message import Message
from grpc.aio import InternalError, ServicerContext, UsageError

from engine.errors import RequestCancelled
from service.deadlines import effective_timeout_s
from service.fairness import write_timeout
from service.repeated_headers import Pairs, merged, refuse_repeats
from service.security import ApiKeys
from service.settings import Settings

Context: TypeAlias = ServicerContext[Any, Any]


def timeout_s(context: Context, settings: Settings) -> float:
    """Returns the seconds left until the client's deadline, capped at the server's limit."""
    return effective_timeout_s(context.time_remaining(), settings.request_timeout_s)


def text_metadata(context: Context) -> dict[str, str]:
    """Returns the client's metadata, without ids that it sent with several values."""
    return dict(_text_pairs(context))


def check_key(context: Context, keys: ApiKeys) -> None:
    """Raises Unauthenticated as `keys` says, and InvalidInput for several keys in one field."""
    pairs = _text_pairs(context)
    refuse_repeats(pairs)
    metadata = dict(pairs)
    keys.check(metadata.get("authorization"), metadata.get("x-api-key"))


def _text_pairs(context: Context) -> Pairs:
    pairs = context.invocation_metadata() or ()
    # Names that end in -bin have values of bytes.
    return merged([(name, value) for name, value in pairs if isinstance(value, str)])


async def write(
    context: Context, message: Message | bytes, *, within_s: float | None = None
) -> None:
    """Sends one message of a stream, or its encoding. Raises AnswerNotTaken if that takes longer
    than `within_s`."""
    with _cancelled_if_gone():
        async with nullcontext() if within_s is None else write_timeout(within_s):
            await context.write(message)


async def send_metadata(context: Context, *pairs: tuple[str, str]) -> None:
    """Sends the initial metadata, which goes before all messages."""
    with _cancelled_if_gone():
        await context.send_initial_metadata(pairs)


@contextmanager
def _cancelled_if_gone() -> Iterator[None]:
    try:
        yield
    except (InternalError, UsageError) as error:  # grpc's only sign that the client has left
        raise RequestCancelled("the client left before its answer was ready") from error
