"""Reads a form with a file while it arrives, and passes the file on, piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from engine.errors import InvalidInput, shown
from service.errors import BodyTooLarge, InvalidField, UnreadableBody, UnsupportedMediaType
from service.http.media_types import MULTIPART

_MAX_FIELD_BYTES = 4096
_MAX_FIELDS = 16

_PIECE_BYTES = 256 * 1024
"""What is passed on at once, at least: a caller may send a byte at a time."""

WriteContents: TypeAlias = Callable[[bytearray], Awaitable[object]]


class FormReader:
    """The fields of a form, and the contents of its part `file`, which are written elsewhere."""

    def __init__(self, content_type: str, write: WriteContents, max_bytes: int) -> None:
        kind, options = parse_options_header(content_type)
        if kind != MULTIPART.encode() or b"boundary" not in options:
            raise UnsupportedMediaType(
                f"a file is uploaded as {MULTIPART}, with a boundary",
                param="content-type",
                limit=MULTIPART,
                actual=content_type,
            )
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.num_bytes = 0
        self._write = write
        self._unwritten = bytearray()
        self._max_bytes = max_bytes
        self._headers: dict[str, bytes] = {}
        self._header_name = self._header_value = b""
        self._name = ""
        self._value = bytearray()
        self._is_file = False
        self._ended = False
        with _reported():  # the boundary may be too long
            self._parser = MultipartParser(options[b"boundary"], self._callbacks())

    async def read(self, pieces: AsyncIterable[bytes]) -> None:
        """Raises an error for a form that is broken, incomplete or too large."""
        with _reported():
            async for piece in pieces:
                self._parser.write(piece)
                if len(self._unwritten) >= _PIECE_BYTES:
                    await self._write_on()
            self._parser.finalize()
        if not self._ended:
            raise UnreadableBody("the form ends before its last boundary", code="invalid_form")
        if self.filename is None:
            raise InvalidField("file is required", code="missing_field", param="file")
        await self._write_on()

    async def _write_on(self) -> None:
        unwritten, self._unwritten = self._unwritten, bytearray()
        await self._write(unwritten)

    def _callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin_part,
            "on_header_field": self._add_to_header_name,
            "on_header_value": self._add_to_header_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": self._take_data,
            "on_part_end": self._end_part,
            "on_end": self._end,
        }

    def _begin_part(self) -> None:
        self._headers = {}
        self._value.clear()

    def _add_to_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _add_to_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        name = self._header_name.decode("latin-1").lower()
        self._headers[name] = self._header_value
        self._header_name = self._header_value = b""

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._headers.get("content-disposition", b""))
        self._name = _decoded(options.get(b"name", b""), "the name of a field")
        self._is_file = self._name == "file"
        if self._is_file:
            if self.filename is not None:
                raise InvalidInput(
                    "the form has more than one file", code="invalid_form", param="file", limit=1
                )
            self.filename = _decoded(options.get(b"filename", b"file"), "the name of the file")
        elif self._name in self.fields:
            raise InvalidInput(
                f"the form has field {shown(self._name)} more than once",
                code="invalid_form",
                param=self._name,
                limit=1,
            )
        elif len(self.fields) == _MAX_FIELDS:
            raise InvalidInput(
                f"the form has more than {_MAX_FIELDS} fields",
                code="invalid_form",
                limit=_MAX_FIELDS,
            )

    def _take_data(self, data: bytes, start: int, end: int) -> None:
        if not self._is_file:
            self._value += data[start:end]
            if len(self._value) > _MAX_FIELD_BYTES:
                raise InvalidInput(
                    f"field {self._name[:80]} has more than {_MAX_FIELD_BYTES} bytes",
                    code="invalid_form",
                    limit=_MAX_FIELD_BYTES,
                )
            return
        self.num_bytes += end - start
        if self.num_bytes > self._max_bytes:
            raise too_large(self.num_bytes, self._max_bytes)
        self._unwritten += data[start:end]

    def _end_part(self) -> None:
        if not self._is_file:
            what = f"field {shown(self._name)}"
            self.fields[self._name] = _decoded(self._value, what)

    def _end(self) -> None:
        self._ended = True


def _decoded(value: bytes | bytearray, what: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise UnreadableBody(
            f"{what} is not UTF-8: byte {value[error.start]:#04x} at {error.start}",
            code="invalid_utf8",
            actual=error.start,
        ) from None


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except FormParserError as error:
        raise UnreadableBody(f"the form cannot be read: {error}", code="invalid_form") from error


def too_large(actual: int, limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the file has at least {actual} bytes; the limit is {limit}",
        code="file_too_large",
        param="file",
        limit=limit,
        actual=actual,
    )
