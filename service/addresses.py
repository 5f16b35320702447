"""Addresses of servers: how to reach one that listens on a given host and port."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

_LOOPBACK_FOR_ANY = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def own_address(host: str) -> str:
    """Returns the address to connect to for a server that listens on `host`."""
    return _LOOPBACK_FOR_ANY.get(host, host)


def in_url(host: str) -> str:
    """Returns the host as it is written before a port: IPv6 addresses get brackets."""
    return f"[{host}]" if ":" in host else host


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where a server listens, and the headers a client must send."""

    host: str
    port: int
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: bool = False
    verify: bool = True
    """Whether the server's certificate is verified."""
    ca_file: str | None = None
    """PEM file of the CA that signed it; None for those that the system trusts."""
    needs_certificate: bool = False
    """Whether the server requires a client certificate, which our clients do not have."""

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS settings. Raises OSError if the CA's file cannot be used."""
        if not self.tls:
            return None
        if not self.verify:
            return ssl._create_unverified_context()
        return ssl.create_default_context(cafile=self.ca_file)
