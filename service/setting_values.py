"""Values of settings that are written as one text: lists, pairs, endpoints."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from service.repeated_fields import each_once


def names_in(value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",") if name.strip())


def pairs_in(value: str) -> dict[str, str]:
    """Reads aliases in either form. Raises ValueError."""
    if value.lstrip().startswith("{"):
        try:
            pairs = json.loads(value, object_pairs_hook=each_once)
        except json.JSONDecodeError as error:
            raise ValueError(f"it is not JSON: {error}") from None
        if not all(isinstance(name, str) and name for name in pairs.values()):
            raise ValueError("each alias needs the name of a model, as a string")
        return {str(alias): name for alias, name in pairs.items()}
    pairs = {}
    for pair in names_in(value):
        alias, equals, name = (part.strip() for part in pair.partition("="))
        if not (alias and equals and name):
            raise ValueError(f"write NAME=MODEL, separated by commas; got {pair!r}")
        if alias in pairs:
            raise ValueError(f"{alias} appears twice")
        pairs[alias] = name
    return pairs


def is_endpoint(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # invalid brackets or port
        return False
