"""Who may call: API keys, the limit on open requests, browser origins, and TLS.

Both protocols use the same objects, so a key or a request slot counts once for the whole server.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import ssl
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import grpc

from engine.errors import QueueFull, shown
from service.errors import OriginNotAllowed, Unauthenticated

if TYPE_CHECKING:
    from engine.scheduling.observer import EngineObserver  # imports torch

log = logging.getLogger(__name__)

MIN_KEY_CHARACTERS = 16

_RETRY_AFTER_S = 1.0

_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_ORIGIN = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?P<port>:\d{1,5})?"
)
_SAME_SITES = ("same-origin", "none")  # "none": the user typed the address or used a bookmark

_FileVersion: TypeAlias = tuple[int, int, int]


class ApiKeys:
    """The valid API keys: those of the settings, and those of a file that is reread on changes.

    Only hashes of the keys are stored.
    """

    def __init__(self, keys: Iterable[str] = (), file: Path | None = None) -> None:
        self._fixed = _digests(keys)
        self._file = file
        # Taken before the file is read, so a change in between is noticed at the next check.
        self._file_version = None if file is None else _version_of(file)
        self._last_problem: str | None = None
        self._of_file = frozenset() if file is None else _digests(read_key_file(file))
        self.required = bool(self._fixed) or file is not None

    def add_internal_key(self) -> dict[str, str]:
        """Returns headers with a new random key, for this process to call its own server."""
        if not self.required:
            return {}
        key = secrets.token_urlsafe(32)
        self._fixed |= {_digest(key)}
        return {"authorization": f"Bearer {key}"}

    def check(self, authorization: str | None, x_api_key: str | None) -> None:
        """Raises Unauthenticated unless one of the headers has a valid key or none is required."""
        if not self.required:
            return
        self._reread_if_changed()
        offered = [key for key in (_bearer(authorization), x_api_key) if key is not None]
        if not offered:
            raise Unauthenticated(
                "this server requires an API key: send 'Authorization: Bearer KEY' or 'X-API-Key'",
                code="missing_api_key",
            )
        valid = [self._is_valid(_digest(key)) for key in offered]  # all of them: no early exit
        if not any(valid):
            raise Unauthenticated("the API key is not valid for this server")

    def _is_valid(self, digest: bytes) -> bool:
        """Compares with every key, so that the time taken does not reveal which one matched."""
        matches = [hmac.compare_digest(digest, key) for key in self._fixed | self._of_file]
        return any(matches)

    def _reread_if_changed(self) -> None:
        """Rereads the file if it changed. A file that cannot be read leaves the keys unchanged.

        A mistake in a rotation must neither open the server nor lock everyone out. The file is
        tried again at each check until it can be read: the fix, such as another mode, may not
        change its version.
        """
        if self._file is None:
            return
        version = _version_of(self._file)
        if version == self._file_version:
            return
        try:
            self._of_file = _digests(read_key_file(self._file))
        except ValueError as error:
            if str(error) != self._last_problem:  # logged once, not at every request
                log.error("API keys not read", extra={"fields": {"reason": str(error)}})
            self._last_problem = str(error)
        else:
            self._file_version, self._last_problem = version, None
            log.info("API keys read", extra={"fields": {"keys": len(self._of_file)}})


def check_api_key(key: str) -> None:
    """Raises ValueError for a key that is easy to guess or cannot be sent in a header.

    The message never contains the key.
    """
    if len(key) < MIN_KEY_CHARACTERS or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(
            f"an API key must have at least {MIN_KEY_CHARACTERS} characters, ASCII without spaces"
        )


def read_key_file(file: Path) -> list[str]:
    """Reads one key per line. Blank lines and lines that begin with # are skipped."""
    try:
        lines = list(map(str.strip, file.read_text(encoding="ascii").splitlines()))
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not plain ASCII") from None  # its bytes are secrets
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ValueError(f"{file} has no keys")
    for key in keys:
        check_api_key(key)
    return keys


def _version_of(file: Path) -> _FileVersion | None:
    """Returns values that change when the file is written or replaced; None if it is missing."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _bearer(authorization: str | None) -> str | None:
    scheme, _, key = (authorization or "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def _digests(keys: Iterable[str]) -> frozenset[bytes]:
    return frozenset(map(_digest, keys))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


class RequestLimit:
    """Limits the requests that are open at once. Not thread-safe: use it on the event loop."""

    def __init__(
        self,
        limit: int,
        observer: EngineObserver,
        *,
        kind: str = "requests",
        code: str = "too_many_requests",
    ) -> None:
        self._limit = limit
        self._observer = observer
        self._kind = kind
        self._code = code
        self._open = 0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Occupies a slot while the context is open. Raises QueueFull if there is none."""
        if self._open >= self._limit:
            self._observer.rejected(reason=self._code)
            raise QueueFull(
                f"{self._open} {self._kind} are open, and the limit is {self._limit}",
                code=self._code,
                limit=self._limit,
                actual=self._open + 1,
                retry_after_s=_RETRY_AFTER_S,
            )
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1


class Origins:
    """Rejects requests that browsers send for pages of origins that are not allowed.

    CORS alone does not: for simple requests browsers ask for no permission, they only hide the
    answer. Such a page could still make the server work.
    """

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = frozenset(allowed)

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises OriginNotAllowed. Clients other than browsers send neither header and pass."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        # A page cannot forge Sec-Fetch-Site. It goes first because a proxy may rewrite Host.
        if "*" in self._allowed or site == "same-origin":
            return
        if origin is None:
            if site is not None and site not in _SAME_SITES:
                raise self._not_allowed(f"a {site} page", "sec-fetch-site", site)
        elif origin not in self._allowed and not _is_same_host(origin, headers.get("host", "")):
            raise self._not_allowed(origin, "origin", origin)

    def _not_allowed(self, sender: str, header: str, actual: str) -> OriginNotAllowed:
        return OriginNotAllowed(
            f"the request comes from {shown(sender)}, and pages of other origins may call this "
            "server only if LLN_CORS_ORIGINS lists them",
            param=header,
            limit=", ".join(sorted(self._allowed)) or None,
            actual=actual,
        )


def read_origin(value: str) -> str:
    """Returns an origin of the settings in the form that browsers send, or raises ValueError."""
    if value in ("*", "null"):
        return value
    match = _ORIGIN.fullmatch(value.lower().removesuffix("/"))
    if match is None:
        raise ValueError(
            f"{value!r} is not an origin: write a scheme, a host and optionally a port, as in "
            "https://example.org:8443"
        )
    return match[0].removesuffix(_DEFAULT_PORTS.get(match["scheme"], ""))


def _is_same_host(origin: str, host: str) -> bool:
    """Ignores the scheme: behind a proxy that terminates TLS the server sees http, not https."""
    scheme, _, own = origin.lower().partition("://")
    port = _DEFAULT_PORTS.get(scheme, "")
    own = own.removesuffix(port)
    return bool(own) and own == host.lower().removesuffix(port)


class TlsFiles(NamedTuple):
    """The PEM files for TLS of both protocols. With `client_ca`, clients need a certificate."""

    cert: Path
    key: Path
    client_ca: Path | None

    def check(self) -> None:
        """Raises ValueError for unusable files. gRPC itself would not report them."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.cert, self.key, _refuse_password)
        except OSError as error:
            raise ValueError(f"{self.cert} with {self.key}: {_reason(error)}") from error
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                raise ValueError(f"{self.client_ca}: {_reason(error)}") from error

    def uvicorn_options(self) -> dict[str, Any]:
        return {
            "ssl_certfile": self.cert,
            "ssl_keyfile": self.key,
            "ssl_ca_certs": self.client_ca,
            "ssl_cert_reqs": ssl.CERT_NONE if self.client_ca is None else ssl.CERT_REQUIRED,
        }

    def grpc_credentials(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials(
            [(self.key.read_bytes(), self.cert.read_bytes())],
            root_certificates=None if self.client_ca is None else self.client_ca.read_bytes(),
            require_client_auth=self.client_ca is not None,
        )


def _refuse_password() -> str:
    """Keeps OpenSSL from asking the terminal, which a server does not have."""
    raise ValueError("the private key has a password; a server needs one without")


def _reason(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)
