"""Fields that an object of JSON has twice. Parsers let the last one count and say nothing of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from engine.errors import shown

_END_OF_NAME = re.compile(rb'"(?<![\\[{,: \t\n\r]")[ \t\n\r]*+:')
"""A quotation mark that begins a text, or stands in one, has one of these characters before it."""

_ODD_ENDS = ("\\", "[", "{", ",", ":", " ", "\t", "\n", "\r")
"""So the end of a name that ends like this, or is empty, may look like the beginning of a text."""

_TOKEN = re.compile(
    rb'(?P<text>"[^"\\]*+(?:\\.[^"\\]*+)*+")(?P<colon>[ \t\n\r]*+:)?|[\[\]{},]', re.DOTALL
)
"""What nests JSON that has been parsed before. Numbers and the like are passed over."""

_PIECE_BYTES = 65_536

_CONTAINERS = frozenset({list, dict})


class RepeatedName(ValueError):
    """What `each_once` raises."""


def each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, as `object_pairs_hook` of json.loads. Raises RepeatedName."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise RepeatedName(f"{shown(name)} appears twice")
            seen.add(name)
    return found


class RepeatedField(NamedTuple):
    """A name that its object has already."""

    path: str
    position: int
    """Where the body has it again, in bytes."""


def may_repeat_fields(body: bytes, document: Any) -> bool:
    """Whether the document may have lost a field of its body. Counting tells, unless names are odd:
    of two fields with one name the document has one, and the body both."""
    num_fields, names = _fields_of(body, document)
    if not _has_more_colons(body, num_fields):
        return False
    if any(not name or name.endswith(_ODD_ENDS) for name in names):
        return True
    return sum(1 for _ in _END_OF_NAME.finditer(body)) > num_fields


def _has_more_colons(body: bytes, num: int) -> bool:
    """Ends early in texts, which have many; counting those takes longer than parsing."""
    for start in range(0, len(body), _PIECE_BYTES):
        num -= body.count(b":", start, start + _PIECE_BYTES)
        if num < 0:
            return True
    return False


def _fields_of(body: bytes, document: Any) -> tuple[int, Collection[str]]:
    """How many fields all objects have together, and their names."""
    if isinstance(document, dict) and body.find(b"{", body.index(b"{") + 1) < 0:
        return len(document), document
    num, names, unseen = 0, set[str](), [document]
    while unseen:
        value = unseen.pop()
        if isinstance(value, dict):
            num += len(value)
            names.update(value)
            value = value.values()
        elif not isinstance(value, list):
            continue
        if not _CONTAINERS.isdisjoint(map(type, value)):  # a loop over millions would take longer
            unseen += value
    return num, names


@dataclass(slots=True)
class _Open:
    """An object or a list that is being read."""

    names: set[str] | None
    """The object's names so far; None for a list."""
    place: str | int
    """The name or the index of what is being read in it."""


def find_repeated_field(body: bytes) -> RepeatedField | None:
    """The first one of a body that is JSON."""
    within: list[_Open] = []
    for token in _TOKEN.finditer(body):
        if token["colon"]:
            name = orjson.loads(token["text"])
            innermost = within[-1]
            assert innermost.names is not None, "names are in objects"
            innermost.place = name
            if name in innermost.names:
                return RepeatedField(path_of([one.place for one in within]), token.start())
            innermost.names.add(name)
        elif not token["text"]:
            _follow(token[0], within)
    return None


def _follow(mark: bytes, within: list[_Open]) -> None:
    match mark:
        case b"{":
            within.append(_Open(set(), ""))
        case b"[":
            within.append(_Open(None, 0))
        case b",":
            if isinstance(index := within[-1].place, int):
                within[-1].place = index + 1
        case _:
            within.pop()


def path_of(place: Sequence[str | int]) -> str:
    """`("layers", 3)` as `layers[3]`."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return path.removeprefix(".")
