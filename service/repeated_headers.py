"""Headers of HTTP, and metadata of gRPC, that a request has more than once.

A list may stand on several lines (RFC 9110, 5.3). Of anything else only one value can be meant:
where the values differ, a request is refused, or loses an id that does not change its answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import AnyStr, TypeAlias

from engine.errors import InvalidInput

Pairs: TypeAlias = Sequence[tuple[str, str]]

_LISTS = frozenset(("accept", "content-encoding", "if-none-match", "tracestate"))
_IDS = frozenset(("x-request-id", "traceparent"))
_SINGLE = frozenset(
    (
        *("authorization", "x-api-key", "origin", "sec-fetch-site"),
        *("content-type", "range", "if-range", "x-request-timeout-ms"),
    )
)


def has_repeats(pairs: Sequence[tuple[AnyStr, object]]) -> bool:
    return len({name for name, _ in pairs}) < len(pairs)


def merged(pairs: Pairs) -> Pairs:
    """Joins lists, leaves out ids of which there are several, and what is said twice."""
    if not has_repeats(pairs):
        return pairs
    given: dict[str, list[str]] = {}
    for name, value in pairs:
        given.setdefault(name, []).append(value)
    return [(name, value) for name, values in given.items() for value in _kept(name, values)]


def _kept(name: str, values: list[str]) -> Iterable[str]:
    if name in _LISTS:
        return (", ".join(values),)
    different = dict.fromkeys(values)
    if name in _IDS:
        return different if len(different) == 1 else ()
    return different if name in _SINGLE else values


def refuse_repeats(pairs: Pairs) -> None:
    """Raises for a header that still has several values. They may be secret: it names none."""
    if not has_repeats(pairs):
        return
    for name, count in Counter(name for name, _ in pairs).items():
        if count > 1 and name in _SINGLE:
            raise InvalidInput(
                f"the request has {count} different values of the header {name}; send one",
                code="repeated_header",
                param=name,
                limit=1,
                actual=count,
            )
