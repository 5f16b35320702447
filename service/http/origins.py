"""Which pages a browser may call for: those of this server, and of the origins that are named."""

from __future__ import annotations

import re
from collections.abc import Collection

from starlette.datastructures import Headers

from engine.errors import shown
from service.errors import OriginNotAllowed

_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_ORIGIN = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?P<port>:\d{1,5})?"
)
_OURS = ("same-origin", "none")  # "none" is the user's own doing, such as an address typed in


def read_origin(value: str) -> str:
    """An origin of the settings as browsers write it. Raises ValueError for one that none sends."""
    if value in ("*", "null"):
        return value
    found = _ORIGIN.fullmatch(value.lower().removesuffix("/"))
    if found is None:
        raise ValueError(
            f"{value!r} is no origin; it is a scheme, a host and perhaps a port, as in "
            "https://example.org:8443"
        )
    return found[0].removesuffix(_DEFAULT_PORTS.get(found["scheme"], ""))


class Origins:
    """Refuses what another origin's page sends. Without this, a page could have work done here that
    it may not read the answer of: browsers ask beforehand only about some requests."""

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = frozenset(allowed)

    def check(self, headers: Headers) -> None:
        """Raises OriginNotAllowed. Callers that are no browsers send neither header."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        # Pages cannot set Sec-Fetch-Site, and a proxy may have put another name into Host.
        if "*" in self._allowed or site == "same-origin":
            return
        if origin is None:
            if site is not None and site not in _OURS:
                raise self._refusal(f"a {site} page", "sec-fetch-site", site)
        elif origin not in self._allowed and not _is_of_host(origin, headers.get("host", "")):
            raise self._refusal(origin, "origin", origin)

    def _refusal(self, who: str, header: str, actual: str) -> OriginNotAllowed:
        return OriginNotAllowed(
            f"pages of other origins may call only if LLN_CORS_ORIGINS names them, and this is "
            f"sent for {shown(who)}",
            param=header,
            limit=", ".join(sorted(self._allowed)) or None,
            actual=actual,
        )


def _is_of_host(origin: str, host: str) -> bool:
    """The scheme may differ: behind a proxy that ends TLS the server sees another than the page."""
    scheme, _, own = origin.lower().partition("://")
    port = _DEFAULT_PORTS.get(scheme, "")
    own = own.removesuffix(port)
    return bool(own) and own == host.lower().removesuffix(port)
