"""Failures as gRPC shows them: a status, a message, and trailing metadata for programs.

Which status an error has is said by the one table of `service.errors`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any, TypeAlias
from urllib.parse import quote

from google.protobuf.message import Message
from grpc.aio import AbortError, InternalError, ServicerContext, UsageError

from engine.errors import LLNError, RequestCancelled
from service.errors import as_lln_error, row_for
from service.pb.lln.v1 import embeddings_pb2 as pb
from service.slow_callers import takes_within

log = logging.getLogger(__name__)

Context: TypeAlias = ServicerContext[Any, Any]

# Clients refuse more than 8 KiB of metadata, which these fill if every character needs 12 bytes;
# and messages may repeat what a caller sent.
_MAX_MESSAGE = 400
_MAX_VALUE = 80

_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


@asynccontextmanager
async def status_on_error(context: Context) -> AsyncIterator[None]:
    """Ends the call with the status of whatever is raised inside, unary and streaming alike."""
    try:
        yield
    except AbortError:  # the call has its status already
        raise
    except Exception as error:
        if not isinstance(error, LLNError):
            log.exception("call failed")
        await _abort(context, as_lln_error(error))


async def write(context: Context, message: Message, *, within_s: float | None = None) -> None:
    """Sends one message of a stream. Who takes it later than `within_s` is given up."""
    limit = nullcontext() if within_s is None else takes_within(within_s)
    with _to_who_may_be_gone():
        async with limit:
            await context.write(message)


async def send_metadata(context: Context, *pairs: tuple[str, str]) -> None:
    """Sends what goes before all messages."""
    with _to_who_may_be_gone():
        await context.send_initial_metadata(pairs)


@contextmanager
def _to_who_may_be_gone() -> Iterator[None]:
    try:
        yield
    except (InternalError, UsageError) as error:  # all that grpc says of a client that is gone
        raise RequestCancelled("the client left before its answer was ready") from error


def error_message(error: LLNError) -> pb.Error:
    """The same failure as a message, for one item of a stream."""
    status: int
    status, _ = row_for(error).grpc_code.value
    return pb.Error(
        status=status,
        code=error.code,
        message=_shortened(error.message, _MAX_MESSAGE),
        param=error.param,
        limit=None if error.limit is None else str(error.limit),
        actual=None if error.actual is None else _shortened(str(error.actual), _MAX_VALUE),
        retry_after_s=error.retry_after_s,
    )


def error_metadata(error: LLNError) -> tuple[tuple[str, str], ...]:
    """What a program wants to know of a failure, as trailing metadata."""
    values = {
        "lln-error-code": error.code,
        "lln-error-param": error.param,
        "lln-error-limit": error.limit,
        "lln-error-actual": error.actual,
        "lln-retry-after-s": error.retry_after_s,
    }
    return tuple((key, _ascii(value)) for key, value in values.items() if value is not None)


async def _abort(context: Context, error: LLNError) -> None:
    code = row_for(error).grpc_code
    message = _shortened(error.message, _MAX_MESSAGE)
    try:
        await context.abort(code, message, error_metadata(error))
    except InternalError as failure:  # the client left before it took even the status
        raise asyncio.CancelledError from failure


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _ascii(value: object) -> str:
    """Metadata carries printable ASCII only; the rest is percent-encoded, as in gRPC's messages."""
    return quote(_shortened(str(value), _MAX_VALUE), safe=_PRINTABLE, errors="replace")
