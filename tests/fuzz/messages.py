"""Protobuf messages made up from their descriptors, and what is left of them after an accident."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_STRINGS = (
    "",
    "a",
    "The cat sat on the mat because it was warm.",
    "default",
    "sentence-transformers/all-MiniLM-L6-v2",
    "entropy",
    "spectral_gap",
    "query",
    "grpc.health.v1.Health",
    "lln.v1.Embeddings.Embed",
    "../../etc/passwd",
    "\x00\x01\x7f",
    "naïve 北京 🦊 \u202e \ufeff",
    "e\u0301" * 50,
    "x" * 3_000,
    "word " * 3_000,
)
_HUGE = 2_000_000
# What gets past the first check, so that there is something behind it to be found.
_PLAUSIBLE: dict[str, tuple[str | int, ...]] = {
    "model": ("default",),
    "dimensions": (1, 5, 384),
    "text": ("a", "The cat sat on the mat because it was warm.", "naïve 北京 🦊"),
    "inputs": ("a", "The cat sat on the mat because it was warm.", "naïve 北京 🦊"),
    "ids": (101, 102, 7),
    "layers": (0, 1, 5),
    "heads": (0, 3, 11),
    "instruments": ("entropy", "spectral_gap", "temperature"),
}
_WHOLE = (0, 1, 2, 3, 7, 101, 384, 385, 2**31 - 1)
_SIGNED = (-1, -(2**31))
_REAL = (0.0, -0.0, 1.5, -1e30, float("inf"), float("nan"))
_NUMBERS: dict[int, tuple[int | float, ...]] = {
    FieldDescriptor.CPPTYPE_INT32: _WHOLE + _SIGNED,
    FieldDescriptor.CPPTYPE_INT64: (*_WHOLE, *_SIGNED, 2**63 - 1, -(2**63)),
    FieldDescriptor.CPPTYPE_UINT32: (*_WHOLE, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (*_WHOLE, 2**64 - 1),
    FieldDescriptor.CPPTYPE_FLOAT: _REAL,
    FieldDescriptor.CPPTYPE_DOUBLE: _REAL,
    FieldDescriptor.CPPTYPE_BOOL: (0, 1),
}


def made_up(kind: Descriptor, chance: random.Random, depth: int = 0) -> Message:
    """A message of a kind, each field of it absent or filled with something notable."""
    message: Message = GetMessageClass(kind)()
    for field in kind.fields:
        absent = 0.9 if field.name == "prompt_name" else 0.35
        if chance.random() < absent or (depth > 3 and field.message_type is not None):
            continue
        if field.is_repeated:
            _fill_repeated(message, field, chance, depth)
        elif field.message_type is not None:
            getattr(message, field.name).MergeFrom(made_up(field.message_type, chance, depth + 1))
        else:
            setattr(message, field.name, _value(field, chance))
    return message


def _fill_repeated(
    message: Message, field: FieldDescriptor, chance: random.Random, depth: int
) -> None:
    values: Any = getattr(message, field.name)
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        if field.message_type is not None:
            values.add().MergeFrom(made_up(field.message_type, chance, depth + 1))
        else:
            values.append(_value(field, chance))


def _value(field: FieldDescriptor, chance: random.Random) -> Any:
    value = _notable(field, chance)
    is_bytes = field.type == FieldDescriptor.TYPE_BYTES
    return value.encode() if is_bytes and isinstance(value, str) else value


def _notable(field: FieldDescriptor, chance: random.Random) -> str | int | float:
    if field.name in _PLAUSIBLE and chance.random() < 0.7:
        return chance.choice(_PLAUSIBLE[field.name])
    if field.enum_type is not None:
        known = [value.number for value in field.enum_type.values]
        return chance.choice([*known, 99, -1])
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return "word " * (_HUGE // 5) if chance.random() < 0.005 else chance.choice(_STRINGS)
    return chance.choice(_NUMBERS[field.cpp_type])


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Bytes that were cut, flipped, doubled, or never a message at all."""
    match chance.randrange(6):
        case 0:
            return data[: chance.randrange(len(data) + 1)]
        case 1 if data:
            at = chance.randrange(len(data))
            return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
        case 2:
            at = chance.randrange(len(data) + 1)
            return data[:at] + chance.randbytes(chance.randrange(1, 20)) + data[at:]
        case 3:
            return data + data
        case 4:  # a field that nobody knows, and one whose length is a lie
            return data + b"\xfa\x7f\x03abc" + b"\x0a\xff\xff\xff\x7f"
    return chance.randbytes(chance.randrange(200))
