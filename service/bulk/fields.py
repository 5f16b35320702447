"""Which fields of a row are what, and the row that they make."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from engine.text.titles import is_visible
from service.bulk.rows import BadRow, InputRow, TextRow
from service.given_values import named

EXACT = 2**53
"""Floats hold every whole number up to this."""


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Which fields of a row are what."""

    text: str = "text"
    id: str = "id"
    title: str | None = None
    keep: tuple[str, ...] = ()

    @property
    def asked_for(self) -> set[str]:
        """Those that rows need not have."""
        return {*self.keep, *([self.title] if self.title else [])}

    @property
    def all(self) -> list[str]:
        return [self.text, self.id, *([self.title] if self.title else []), *self.keep]


def row_of(found: Mapping[str, Any], name: str, fields: Fields, size: int) -> InputRow:
    """A row with a text, or the reason why it is not one."""
    row_id = _id_of(found.get(fields.id), name)
    text = found.get(fields.text)
    problem = _problem(found, text, fields)
    if problem is not None:
        return BadRow(id=row_id, code=problem[0], reason=problem[1], num_bytes=size)
    assert isinstance(text, str), "a row without one has a problem"
    title = found.get(fields.title) if fields.title else None
    assert title is None or isinstance(title, str), "a row with another title has a problem"
    return TextRow(
        id=row_id,
        text=text,
        title=title if title and is_visible(title) else None,
        kept={field: _plain(found.get(field)) for field in fields.keep},
        num_bytes=size,
    )


def _id_of(own: Any, name: str) -> str | int:
    """A row's own id, as a text or a whole number; its place if it has none that can be written."""
    if isinstance(own, float) and own.is_integer() and abs(own) < EXACT:
        return int(own)  # pandas writes whole numbers so if one of them is missing
    plain = _plain(own)
    if plain is None:
        return name
    if isinstance(plain, bool) or not isinstance(plain, str | int):
        plain = json.dumps(plain, ensure_ascii=False)
    return name if _is_broken(plain) else plain


def _problem(found: Mapping[str, Any], text: object, fields: Fields) -> tuple[str, str] | None:
    if fields.text not in found:
        return "no_text", f"the row has no {fields.text!r}"
    if text is None:
        return "null_text", f"{fields.text!r} is null"
    if not isinstance(text, str):
        return "not_a_text", f"{fields.text!r} must be a text, got {named(text)}"
    if not text.strip():
        return "empty_text", f"{fields.text!r} is empty"
    title = found.get(fields.title) if fields.title else None
    if title is not None and not isinstance(title, str):
        return "not_a_text", f"{fields.title!r} must be a text, got {named(title)}"
    for name in fields.all:
        if _is_broken(found.get(name)):
            return "not_utf8", f"{name!r} is not text in UTF-8"
    return None


def _is_broken(value: Any) -> bool:
    """Whether a text in it has halves of surrogate pairs, which UTF-8 cannot write."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _plain(value: Any) -> Any:
    """A value as every output can write it; others, such as dates, integers of more than 64 bits
    and lists that nest too deeply, as text."""
    try:
        # In a list, since in the output it stands in a row: both count as levels.
        [plain] = orjson.loads(orjson.dumps([value], option=orjson.OPT_PASSTHROUGH_DATETIME))
        return plain
    except TypeError:
        is_nested = isinstance(value, dict | list)
        return json.dumps(value, default=str) if is_nested else str(value)
