"""How a process reaches itself at the address it listens on."""

from __future__ import annotations

_EVERYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def own_address(host: str) -> str:
    """The address to call where `host` is listened on."""
    return _EVERYWHERE.get(host, host)


def in_url(host: str) -> str:
    """A host as it stands before a port."""
    return f"[{host}]" if ":" in host else host
