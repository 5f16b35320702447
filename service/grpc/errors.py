"""Failures over gRPC: a status and a message for people, and trailing metadata for programs.

The status of each error comes from the table in `service.errors`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

from grpc.aio import AbortError, InternalError

from engine.errors import LLNError
from service.errors import as_lln_error, row_for
from service.grpc.context import Context
from service.pb.lln.v1 import embeddings_pb2 as pb

log = logging.getLogger(__name__)

# gRPC clients reject more than 8 KiB of metadata. These limits stay below it even if each
# character, which may come from the request, takes 12 bytes.
_MAX_MESSAGE = 400
_MAX_VALUE = 80

_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


@asynccontextmanager
async def status_on_error(context: Context) -> AsyncIterator[None]:
    """Ends the call with the status of any error raised inside, unary and streaming alike."""
    try:
        yield
    except AbortError:  # the call already has its status
        raise
    except Exception as failure:
        if not isinstance(failure, LLNError):
            log.exception("call failed")
        error = as_lln_error(failure)
        code, message = row_for(error).grpc_code, _shortened(error.message, _MAX_MESSAGE)
        try:
            await context.abort(code, message, error_metadata(error))
        except InternalError as gone:  # the client left before it received the status
            raise asyncio.CancelledError from gone


def error_message(error: LLNError) -> pb.Error:
    """Returns the error as a message, for one item of a stream."""
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
    """Returns the error's fields as trailing metadata."""
    values = {
        "lln-error-code": error.code,
        "lln-error-param": error.param,
        "lln-error-limit": error.limit,
        "lln-error-actual": error.actual,
        "lln-retry-after-s": error.retry_after_s,
    }
    return tuple((key, _ascii(value)) for key, value in values.items() if value is not None)


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _ascii(value: object) -> str:
    """Metadata is printable ASCII. The rest is percent-encoded, as in gRPC's status messages."""
    return quote(_shortened(str(value), _MAX_VALUE), safe=_PRINTABLE, errors="replace")
