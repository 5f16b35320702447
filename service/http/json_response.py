"""JSON answers: written with orjson, with vectors and costs as JSON values.

Long lists are written a few milliseconds at a time, with the event loop free in between.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from engine.model.quantized import quantize
from engine.types import Accounting, ModelInfo, OutputDtype, Span, Vector
from service.fairness import cooperatively, write_timeout

EncodingFormat: TypeAlias = Literal["float", "base64"]

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY

_BASE64_BYTES = 3 * 2**14
"""Encoded at a time, for a piece of an answer; a multiple of three needs no padding."""

_NUMBERS_AT_ONCE = 4_096

_PIECE_BYTES = 65_536
_SHORT_BYTES = _PIECE_BYTES // 2

_PLACE = b"\0"
"""Stands for a part that is written already: JSON has no such byte."""


class WrittenJson:
    """A part of an answer that is JSON already, in pieces. Together they may have hundreds of
    megabytes: copied in one go, they would hold up the event loop for a second."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces


class AnswerInPieces(Response):
    """A body in pieces, each sent once the caller has read those before: all of them within the
    time of a request."""

    def __init__(
        self, pieces: Sequence[bytes], status: int, headers: Mapping[str, str] | None
    ) -> None:
        length = {"content-length": str(sum(map(len, pieces)))}
        super().__init__(None, status, {**(headers or {}), **length}, "application/json")
        self.pieces = deque(pieces)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        async with write_timeout(scope["app"].state.settings.request_timeout_s):
            while self.pieces:  # each is freed once it is sent
                piece = self.pieces.popleft()
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            # Sent once the others have left.
            await send({"type": "http.response.body", "body": b""})


def whole_body(response: Response) -> bytes:
    """The body of an answer that is not sent."""
    if isinstance(response, AnswerInPieces):
        return b"".join(response.pieces)
    return bytes(response.body)


def json_response(
    document: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer of a few values. Pass long lists through `dump_list` first."""
    writer = _Writer()
    writer.write(document)
    pieces = writer.pieces()
    if len(pieces) == 1:
        return Response(pieces[0], status, headers, media_type="application/json")
    return AnswerInPieces(pieces, status, headers)


async def dump_list(items: Iterable[Any]) -> WrittenJson:
    """A JSON list, written a few milliseconds at a time."""
    writer = _Writer()
    before = b"["
    async for item in cooperatively(items):
        writer.add(before)
        writer.write(item)
        before = b","
    writer.add(b"]" if before == b"," else b"[]")
    return WrittenJson(writer.pieces())


async def dump_array(values: NDArray[Any]) -> WrittenJson:
    """An array of any size as a JSON list, written a few milliseconds at a time."""
    num_rows = max(1, _NUMBERS_AT_ONCE * len(values) // max(1, values.size))
    writer = _Writer()
    before = b"["
    async for start in cooperatively(range(0, len(values), num_rows)):
        rows = np.ascontiguousarray(values[start : start + num_rows])
        writer.add(before)
        writer.add(orjson.dumps(rows, option=_OPTIONS)[1:-1])
        before = b","
    writer.add(b"]" if before == b"," else b"[]")
    return WrittenJson(writer.pieces())


async def dump_floats(values: NDArray[np.float32], encoding: EncodingFormat) -> WrittenJson:
    """An array of any size as JSON, written a few milliseconds at a time."""
    if encoding == "float":
        return await dump_array(values)
    data = values.astype("<f4", copy=False).tobytes()
    starts = range(0, len(data), _BASE64_BYTES)
    pieces = [
        base64.b64encode(data[start : start + _BASE64_BYTES])
        async for start in cooperatively(starts)
    ]
    return WrittenJson([b'"', *pieces, b'"'])


class _Writer:
    """Writes JSON into pieces. Short ones are joined: each alone would hold the kilobytes that
    orjson reserves for it."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._last = BytesIO()
        self._within: list[WrittenJson] = []

    def write(self, document: Any) -> None:
        """Adds the document, with the parts of it that are written already in their places."""
        whole = orjson.dumps(document, default=self._leave_place, option=_OPTIONS)
        if not self._within:
            self.add(whole)
            return
        first, *others = whole.split(_PLACE)
        self.add(first)
        for written, after in zip(self._within, others, strict=True):
            for piece in (*written.pieces, after):
                self.add(piece)
        self._within = []

    def add(self, piece: bytes) -> None:
        if self._last.tell() + len(piece) > _PIECE_BYTES:
            self._end_piece()
        if len(piece) > _SHORT_BYTES:
            self._end_piece()
            self._pieces.append(piece)
        else:
            self._last.write(piece)

    def pieces(self) -> Sequence[bytes]:
        self._end_piece()
        return self._pieces

    def _end_piece(self) -> None:
        if self._last.tell():
            self._pieces.append(self._last.getvalue())
            self._last = BytesIO()

    def _leave_place(self, value: Any) -> orjson.Fragment:
        if not isinstance(value, WrittenJson):
            raise TypeError(f"{type(value).__name__} is no value of JSON")
        self._within.append(value)
        return orjson.Fragment(_PLACE)


def encode_vector(vector: NDArray[Any], encoding: EncodingFormat) -> NDArray[Any] | str:
    """Numbers for orjson to write, or base64 of their bytes, in little-endian order."""
    if encoding == "base64":
        little = vector.dtype.newbyteorder("<")
        return base64.b64encode(vector.astype(little, copy=False).tobytes()).decode()
    return np.ascontiguousarray(vector)


class VectorForm(NamedTuple):
    """How the vectors of one answer are written."""

    dtype: OutputDtype
    encoding: EncodingFormat
    model: ModelInfo

    def write(self, vector: Vector) -> NDArray[Any] | str:
        return encode_vector(quantize(vector, self.dtype, self.model), self.encoding)


def span(value: Span) -> dict[str, int]:
    return {"start": value.start, "end": value.end}


def accounting(cost: Accounting) -> dict[str, Any]:
    return {
        "tokens": cost.tokens,
        "tokens_embedded": cost.tokens_embedded,
        "dropped": None if cost.dropped is None else span(cost.dropped),
        "queue_s": cost.queue_s,
        "compute_s": cost.compute_s,
        "tokens_alone": cost.tokens_alone,
        "tokens_saved": cost.tokens_saved,
    }


def usage(tokens: int) -> dict[str, int]:
    """OpenAI's token count. Embedding generates no tokens: the total is the prompt's."""
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def server_timing(costs: Sequence[Accounting]) -> dict[str, str]:
    """The standard `Server-Timing` header: the longest wait and the longest computation."""
    queue_ms = max(cost.queue_s for cost in costs) * 1000
    compute_ms = max(cost.compute_s for cost in costs) * 1000
    return {"server-timing": f"queue;dur={queue_ms:.1f}, compute;dur={compute_ms:.1f}"}
