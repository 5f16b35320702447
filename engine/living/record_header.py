"""Whether the header of a record holds what LLN writes.

Anyone can make a record, with a checksum that fits. Values of other types would fail much later, as
if the server were at fault, and some numbers decide how often something is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, get_args

from engine.living_types import RecordPrecision
from engine.types import HeadingFormat

_NUMBER, _TEXT = (int, float, NoneType), (str, NoneType)
_KINDS: Mapping[str, tuple[type, ...]] = {
    "prompt_name": _TEXT,
    "title": _TEXT,
    "found_title": (list, NoneType),
    "chunking": (dict, NoneType),
    "num_tokens": (int,),
    "block_size": (int,),
    "num_layers": (int,),
    "folded": (bool,),
    "segments": (list,),
}
_KINDS_OF_PLANS: Mapping[str, tuple[type, ...]] = {
    "type": (str,),
    "context": (str,),
    "opening": _NUMBER,
    "alone": _NUMBER,
    "tokens": (int,),
    "overlap": (int,),
    "min_tokens": (int,),
    "max_tokens": (int,),
    "format": (str,),
}


def check_header(header: Mapping[str, Any], num_views: int) -> None:
    """Raises ValueError, and KeyError if something is missing."""
    for name, kinds in _KINDS.items():
        _check_kind(name, header[name], kinds)
    for name, value in (header["chunking"] or {}).items():
        _check_kind(name, value, _KINDS_OF_PLANS[name])
    for place in header["found_title"] or ():
        _check_kind("found_title", place, (int,))
    _check_choice(header["precision"], get_args(RecordPrecision))
    # Records of earlier versions of LLN do not say it.
    _check_choice(header.get("heading_format"), (None, *get_args(HeadingFormat)))
    for described in header["segments"]:
        _check_segment(described, num_views)


def _check_segment(described: Mapping[str, Any], num_views: int) -> None:
    """The numbers are held to what any segment of a text has."""
    seen, digest, sees_end = described["key"]
    rows, content = described["num_rows"], described["num_content"]
    for value, least, most in (
        (seen, described["num_characters"], None),
        (described["num_characters"], 1, None),
        (rows, content, None),
        (content, 0, None),
        (described["num_chunks"], 0, None),
        (described["num_alone"], 0, None),
        (described["num_sealed"], 0, content),
        (described["view"], 0, num_views - 1),
    ):
        _check_kind("a number", value, (int,))
        if value < least or (most is not None and value > most):
            raise ValueError("no segment has such numbers")
    _check_kind("a digest", digest, (str,))
    _check_kind("an end", sees_end, (bool,))
    for headings in described["headings"]:
        for heading in headings:
            _check_kind("a heading", heading, (str,))


def _check_kind(name: str, value: object, kinds: tuple[type, ...]) -> None:
    """Checks for exactly these types: a boolean is not a number."""
    if type(value) not in kinds:
        raise ValueError(f"{name} is a {type(value).__name__}")


def _check_choice(value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise ValueError(f"{value!r} is none of {known}")
