"""Looks at protobuf's encoding before it is decoded.

A field takes two bytes in a message and a hundred in memory, so a message of 32 MiB could need
gigabytes, and hold the event loop for as long as it takes to build them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message

MAX_FIELDS = 65_536
"""Fields of a message and of all messages in it. The numbers of a packed list count as one."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class _Broken(Exception):
    """Protobuf will say what is wrong."""


def has_too_many_fields(data: bytes, message: type[Message]) -> bool:
    try:
        return any(
            count > MAX_FIELDS for count, _ in enumerate(_fields(data, message.DESCRIPTOR), 1)
        )
    except _Broken:
        return False


def _fields(data: bytes, message: Any) -> Iterator[None]:
    """One item for each field, deep ones included."""
    open_messages = [(0, len(data), message)]
    while open_messages:
        at, end, message = open_messages.pop()
        while at < end:
            yield None
            key, at = _varint(data, at)
            kind = key & 7
            if kind == _VARINT:
                _, at = _varint(data, at)
            elif kind == _BYTES:
                length, at = _varint(data, at)
                field = message.fields_by_number.get(key >> 3)
                if field is not None and field.message_type is not None:
                    open_messages.append((at, min(at + length, end), field.message_type))
                at += length
            elif kind in (_FIXED32, _FIXED64):
                at += 4 if kind == _FIXED32 else 8
            else:
                raise _Broken


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise _Broken
