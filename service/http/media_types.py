"""Content-Type and Accept: what a body is, and which of several answers a caller prefers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from starlette.datastructures import Headers

from engine.errors import shown
from service.errors import UnsupportedMediaType

JSON = "application/json"
NDJSON = "application/x-ndjson"
HTML = "text/html"
PLAIN_TEXT = "text/plain"
MULTIPART = "multipart/form-data"
FORM = "application/x-www-form-urlencoded"

_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")


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


def media_type(headers: Headers) -> str:
    """The Content-Type of a request, without parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


_OF_BROWSERS = ("origin", "sec-fetch-site")


def require_json(
    headers: Headers, *, undeclared: Collection[str] = ("",), others: Sequence[str] = ()
) -> None:
    """Some clients send JSON without a content type, or with curl's default, a form's.

    A page of another origin could send the same without asking the browser's user. So `undeclared`
    types pass only where no browser sent the request: browsers always add one of these headers.
    `others` are what another route of the path takes.
    """
    declared = media_type(headers)
    of_browser = any(name in headers for name in _OF_BROWSERS)
    if declared != JSON and (declared not in undeclared or of_browser):
        hint = f" (curl's default; add -H 'content-type: {JSON}')" if declared == FORM else ""
        taken = " or ".join((JSON, *others))
        raise UnsupportedMediaType(
            f"the body must be sent as {taken}, got {shown(declared or 'no content-type')}{hint}",
            param="content-type",
            limit=taken,
            actual=declared,
        )


def require_utf8(headers: Headers) -> None:
    """For bodies of text: bytes of another charset may decode as UTF-8, into another text."""
    declared = read_media_type(headers.get("content-type", "")).parameters.get("charset", "utf-8")
    if declared.lower() not in _CHARSETS:
        raise UnsupportedMediaType(
            f"text must be sent as utf-8; content-type says charset={shown(declared)}",
            code="unsupported_charset",
            param="content-type",
            limit="utf-8",
            actual=declared,
        )


def preferred(accept: str, offers: Sequence[str]) -> str | None:
    """The offer that an Accept header prefers, or None if it accepts none of them.

    Among offers of equal quality, one that the header names wins over one that a wildcard covers,
    then the one named first, then the one offered first. Browsers ask for HTML and list images
    with the same quality. Offer HTML before images to answer a browser with JSON.
    """
    ranges = list(_ranges(accept))
    best: tuple[_Match, str] | None = None
    for offer in offers:
        match = _match(offer, ranges)
        if match.quality > 0 and (best is None or match > best[0]):
            best = match, offer
    return best and best[1]


def wants_events(accept: str) -> bool:
    """Whether an Accept header prefers a stream of JSON lines to one JSON document."""
    return preferred(accept, (JSON, HTML, NDJSON)) == NDJSON


class _Range(NamedTuple):
    """One part of an Accept header; `exactness` is 2 for a type, 1 for `type/*`, 0 for `*/*`."""

    name: str
    quality: float
    exactness: int

    def covers(self, offer: str) -> bool:
        return self.exactness == 0 or self.name in (offer, offer.partition("/")[0] + "/*")


class _Match(NamedTuple):
    """How well an offer matches; matches compare field by field, and more is better."""

    quality: float
    exactness: int
    earliness: int


def _ranges(accept: str) -> Iterator[_Range]:
    for part in accept.split(","):
        name, parameters = read_media_type(part)
        exactness = 0 if name == "*/*" else 1 if name.endswith("/*") else 2
        yield _Range(name, _quality(parameters.get("q", "1")), exactness)


def _quality(text: str) -> float:
    """An invalid quality counts as 0: not acceptable."""
    try:
        quality = float(text)
    except ValueError:
        return 0
    return quality if 0 <= quality <= 1 else 0


def _match(offer: str, ranges: Sequence[_Range]) -> _Match:
    """The match of the most exact range that covers the offer (RFC 9110)."""
    found = _Match(0, -1, 0)
    for position, one in enumerate(ranges):
        if one.exactness > found.exactness and one.covers(offer):
            found = _Match(one.quality, one.exactness, -position)
    return found
