"""JSON of a megabyte or more, read in another process: its functions import little, so that the
process starts quickly and stays small."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import orjson

from service.repeated_fields import RepeatedField, find_repeated_field, may_repeat_fields

MAX_VALUES = 2_000_000
"""A large document has at most this many values, token ids in long lists aside. Each becomes an
object, of which 32 MiB of JSON can hold millions."""

MAX_LISTS = 200_000
"""A document has at most this many lists and objects: more than 65,536 edits and as many chunks
need. A million, each in another, hold the interpreter for a second when they are unpickled."""

MAX_FIELDS = 400_000
"""All objects of a document together have at most this many fields: more than 65,536 edits and as
many chunks need. Two million in one object hold the interpreter for a second when they are
unpickled."""

MAX_DEPTH = 1_024
"""Lists and objects within each other, as many as the parser reads."""

_MANY_IDS = 10_000

_MAX_SEARCHED_BYTES = 65_536
"""The event loop searches a body up to this size for repeated fields, in some 20 ms at most."""

NOT_QUICKLY = object()
"""Instead of a document that could take long to read."""

_FIELDS_OF_IDS = frozenset({"input", "inputs", "ids", "tokens"})
"""Whoever reads one of these takes arrays too. No other field becomes one."""


class Excess(NamedTuple):
    """What a document has too many of."""

    code: str
    limit: int
    what: str


_TOO_MANY_VALUES = Excess("too_many_values", MAX_VALUES, "values")
_TOO_MANY_LISTS = Excess("too_many_lists", MAX_LISTS, "lists and objects")
_TOO_MANY_FIELDS = Excess("too_many_fields", MAX_FIELDS, "fields")


class Unreadable(NamedTuple):
    """Why a document is unreadable: our exceptions cannot be pickled to the parent process."""

    message: str
    code: str | None = None
    """None for the usual one, of what is not JSON."""
    position: int | None = None
    limit: int | None = None


def read_quickly(body: bytes) -> Any:
    """The document, Unreadable, RepeatedField or NOT_QUICKLY."""
    if may_exceed(body):
        return NOT_QUICKLY
    document = _parsed(body)
    if isinstance(document, Unreadable) or not may_repeat_fields(body, document):
        return document
    if len(body) > _MAX_SEARCHED_BYTES:
        return NOT_QUICKLY
    return find_repeated_field(body) or document


def read_large_json(body: bytes) -> Any:
    """The document, its long lists of token ids as arrays; or Unreadable or RepeatedField."""
    document = with_arrays(_with_each_field_once(body, _parsed(body)))
    if (excess := excess_of(document)) is not None:
        message = f"the body has more than {excess.limit} {excess.what}"
        return Unreadable(message, excess.code, limit=excess.limit)
    return document


def _parsed(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return _why_unreadable(body, error)


def _with_each_field_once(body: bytes, document: Any) -> Any:
    if isinstance(document, Unreadable):
        return document
    return repeated_field(body, document) or document


def repeated_field(body: bytes, document: Any) -> RepeatedField | None:
    return find_repeated_field(body) if may_repeat_fields(body, document) else None


def _why_unreadable(body: bytes, error: orjson.JSONDecodeError) -> Unreadable:
    try:
        body.decode()
    except UnicodeDecodeError as broken:
        message = f"the body is not UTF-8: byte {body[broken.start]:#04x} at {broken.start}"
        return Unreadable(message, "invalid_utf8", broken.start)
    if "surrogate" in error.msg:
        message = f"the body has half of a surrogate pair at character {error.pos}"
        return Unreadable(message, "invalid_unicode", error.pos)
    if "depth limit" in error.msg:
        message = f"the body has more than {MAX_DEPTH} lists and objects within each other"
        return Unreadable(f"{message}, at character {error.pos}", "too_deep", error.pos, MAX_DEPTH)
    return Unreadable(f"the body is not JSON: {error}", position=error.pos)


def may_exceed(body: bytes) -> bool:
    """Whether a document of these bytes could have too many values, lists or fields: brackets in
    texts count here too, and a field takes more than five bytes."""
    return len(body) > MAX_VALUES or body.count(b"[") + body.count(b"{") > MAX_LISTS


def excess_of(document: Any) -> Excess | None:
    """What the document has too many of, its arrays aside."""
    num_values, num_lists, num_fields, unseen = 0, 0, 0, [document]
    while unseen:
        value = unseen.pop()
        if not isinstance(value, list | dict):
            continue
        num_values += len(value)
        if num_values > MAX_VALUES:
            return _TOO_MANY_VALUES
        num_lists += 1
        if num_lists > MAX_LISTS:
            return _TOO_MANY_LISTS
        if isinstance(value, dict):
            num_fields += len(value)
            if num_fields > MAX_FIELDS:
                return _TOO_MANY_FIELDS
        unseen += value.values() if isinstance(value, dict) else value
    return None


def with_arrays(document: Any) -> Any:
    """The same document. Unpickling its arrays is quick: their bytes are copied in one piece."""
    if isinstance(document, dict):
        for name in _FIELDS_OF_IDS & document.keys():
            document[name] = _as_arrays(document[name])
    return document


def _as_arrays(value: Any) -> Any:
    """Long lists of token ids, alone or in a list of inputs, as arrays."""
    if not isinstance(value, list):
        return value
    whole = _as_array(value)
    return [_as_array(item) for item in value] if whole is value else whole


def _as_array(value: Any) -> Any:
    if not isinstance(value, list) or len(value) < _MANY_IDS or not _are_ints(value):
        return value
    try:
        return np.array(value, np.int64)
    except OverflowError:  # a number of more than 64 bits
        return value


def _are_ints(values: list[Any]) -> bool:
    # Booleans are not. A loop over millions would take three times as long.
    return type(values[0]) is int and set(map(type, values)) == {int}
