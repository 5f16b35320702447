"""Media types: what a body is declared to be, and which of several answers a caller would take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

JSON = "application/json"
NDJSON = "application/x-ndjson"
HTML = "text/html"


class MediaType(NamedTuple):
    name: str
    parameters: dict[str, str]


def read_media_type(value: str) -> MediaType:
    """`text/plain; charset="UTF-8"` as its lower-case name and its parameters."""
    name, *parameters = value.split(";")
    pairs = (parameter.partition("=") for parameter in parameters)
    return MediaType(
        name.strip().lower(),
        {key.strip().lower(): text.strip().strip('"') for key, _, text in pairs},
    )


def preferred(accept: str, offers: Sequence[str]) -> str | None:
    """The offer that an Accept header likes best, None where it takes none.

    Among equals goes what is named over what a wildcard covers, then what the header names first,
    then what is offered first. JSON answers a browser too, which asks for a page and names beside
    it, as dearly, the pictures it can show: offer HTML before them.
    """
    ranges = list(_ranges(accept))
    best: tuple[_Liking, str] | None = None
    for offer in offers:
        liking = _liking(offer, ranges)
        if liking.quality > 0 and (best is None or liking > best[0]):
            best = liking, offer
    return best and best[1]


def wants_events(accept: str) -> bool:
    """Whether an Accept header asks for lines of JSON rather than for one document of it."""
    return preferred(accept, (JSON, HTML, NDJSON)) == NDJSON


class _Range(NamedTuple):
    """One part of an Accept header; `exactness` is 2 for a type, 1 for `type/*`, 0 for `*/*`."""

    name: str
    quality: float
    exactness: int

    def covers(self, offer: str) -> bool:
        return self.exactness == 0 or self.name in (offer, offer.partition("/")[0] + "/*")


class _Liking(NamedTuple):
    """How well an offer is liked; more is better."""

    quality: float
    exactness: int
    earliness: int


def _ranges(accept: str) -> Iterator[_Range]:
    for part in accept.split(","):
        name, parameters = read_media_type(part)
        exactness = 0 if name == "*/*" else 1 if name.endswith("/*") else 2
        yield _Range(name, _quality(parameters.get("q", "1")), exactness)


def _quality(text: str) -> float:
    """What cannot be understood is not asked for."""
    try:
        quality = float(text)
    except ValueError:
        return 0
    return quality if 0 <= quality <= 1 else 0


def _liking(offer: str, ranges: Sequence[_Range]) -> _Liking:
    """By the most exact range that covers the offer, as RFC 9110 has it."""
    found = _Liking(0, -1, 0)
    for position, one in enumerate(ranges):
        if one.exactness > found.exactness and one.covers(offer):
            found = _Liking(one.quality, one.exactness, -position)
    return found
