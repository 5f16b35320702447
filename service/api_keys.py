"""API keys: which there are, and whether a caller brought one. Only their hashes are kept."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from service.errors import Unauthenticated

log = logging.getLogger(__name__)

SHORTEST = 16

Mark: TypeAlias = tuple[int, int, int]


def check_api_key(key: str) -> None:
    """Refuses what could not be sent in a header, or could be guessed. Never tells the key."""
    if len(key) < SHORTEST or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(f"an API key has {SHORTEST} or more characters, ASCII without spaces")


def read_key_file(file: Path) -> list[str]:
    """A key a line; blank lines and those that begin with # are skipped."""
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


class ApiKeys:
    """The keys of the settings and those of a file, which is read again whenever it changes."""

    def __init__(self, keys: Iterable[str] = (), file: Path | None = None) -> None:
        self._fixed = _digests(keys)
        self._file = file
        # Before the reading: a change in between is seen at the next look.
        self._mark = None if file is None else _mark(file)
        self._complaint: str | None = None
        self._of_file = frozenset() if file is None else _digests(read_key_file(file))
        self.required = bool(self._fixed) or file is not None

    def for_myself(self) -> dict[str, str]:
        """Headers that let this process in at its own door, with a key that nobody else has."""
        if not self.required:
            return {}
        key = secrets.token_urlsafe(32)
        self._fixed |= {_digest(key)}
        return {"authorization": f"Bearer {key}"}

    def check(self, authorization: str | None, x_api_key: str | None) -> None:
        """Raises Unauthenticated unless one of the two headers brings a key, or none is needed."""
        if not self.required:
            return
        self._read_if_changed()
        offered = [key for key in (_bearer(authorization), x_api_key) if key is not None]
        if not offered:
            raise Unauthenticated(
                "this server asks for an API key: send 'Authorization: Bearer KEY' or 'X-API-Key'",
                code="missing_api_key",
            )
        known = [self._knows(_digest(key)) for key in offered]  # each, whichever is good
        if not any(known):
            raise Unauthenticated("the API key is not one of this server's")

    def _knows(self, digest: bytes) -> bool:
        """Compares with every key, so that the time taken tells nothing of where one matched."""
        matches = [hmac.compare_digest(digest, key) for key in self._fixed | self._of_file]
        return any(matches)

    def _read_if_changed(self) -> None:
        """A file that cannot be used leaves the keys as they were: a slip in a rotation should
        neither open the door nor lock everyone out. It is tried again until it can be: what mends
        it, such as another mode, need not change its mark."""
        if self._file is None:
            return
        mark = _mark(self._file)
        if mark == self._mark:
            return
        try:
            self._of_file = _digests(read_key_file(self._file))
        except ValueError as error:
            self._complain(str(error))
        else:
            self._mark, self._complaint = mark, None
            log.info("API keys read", extra={"fields": {"keys": len(self._of_file)}})

    def _complain(self, reason: str) -> None:
        """Once, and not at every request until the file is mended."""
        if reason != self._complaint:
            log.error("API keys not read", extra={"fields": {"reason": reason}})
        self._complaint = reason


def _mark(file: Path) -> Mark | None:
    """What differs when a file was written anew, replaced or taken away."""
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
