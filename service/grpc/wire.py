"""Looks at protobuf's encoding before it is decoded.

A field takes two bytes in a message and a hundred in memory, so a message of 32 MiB could need
gigabytes, and hold the event loop for as long as it takes to build them. Sixteen million token ids
hold it for a tenth of a second, and are more than any model reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import Message

from engine.steps import Steps

MAX_FIELDS = 65_536
"""Fields of a message and of all messages in it. The numbers of a packed list count as one."""

MAX_NUMBERS = 8_388_608
"""Numbers of all packed lists of a message together."""

_FIELDS_BETWEEN_PAUSES = 512

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Excess(NamedTuple):
    """What a message has too much of."""

    code: str
    limit: int

    @property
    def message(self) -> str:
        what = "fields" if self.code == "too_many_fields" else "numbers in lists"
        return f"the message has more than {self.limit} {what}"


class _Broken(Exception):
    """Protobuf will say what is wrong."""


def excess_steps(data: bytes, message: type[Message]) -> Steps[Excess | None]:
    """What the message has too much of, if anything."""
    num_numbers = 0
    try:
        for num_fields, numbers in enumerate(_fields(data, message.DESCRIPTOR), 1):
            if num_fields % _FIELDS_BETWEEN_PAUSES == 0:
                yield
            num_numbers += numbers
            if num_fields > MAX_FIELDS:
                return Excess("too_many_fields", MAX_FIELDS)
            if num_numbers > MAX_NUMBERS:
                return Excess("too_many_values", MAX_NUMBERS)
    except _Broken:
        pass
    return None


def _fields(data: bytes, message: Any) -> Iterator[int]:
    """For each field, deep ones included, how many numbers of a packed list it has."""
    open_messages = [(0, len(data), message)]
    while open_messages:
        at, end, message = open_messages.pop()
        while at < end:
            numbers = 0
            key, at = _varint(data, at)
            kind = key & 7
            if kind == _VARINT:
                _, at = _varint(data, at)
            elif kind == _BYTES:
                length, at = _varint(data, at)
                field = message.fields_by_number.get(key >> 3)
                if field is not None and field.message_type is not None:
                    open_messages.append((at, min(at + length, end), field.message_type))
                elif field is not None and field.type not in (field.TYPE_STRING, field.TYPE_BYTES):
                    numbers = _num_varints(data, at, length)
                at += length
            elif kind in (_FIXED32, _FIXED64):
                at += 4 if kind == _FIXED32 else 8
            else:
                raise _Broken
            yield numbers


def _num_varints(data: bytes, at: int, length: int) -> int:
    """Each ends in a byte without the highest bit."""
    packed = np.frombuffer(data, np.uint8, min(length, len(data) - at), at)
    return int(np.count_nonzero(packed < 0x80))


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
