"""What the system knows of a connection."""

from __future__ import annotations

import asyncio
import os
import socket
import sys

ESTABLISHED = 1
"""Neither end has closed. These are Linux's numbers."""

CLOSE_WAIT = 8
"""The other end has closed its side, or all of it."""


def state_of(transport: asyncio.Transport) -> int | None:
    """The state. Only Linux tells without reading what the other end sent before."""
    connection = transport.get_extra_info("socket")
    if connection is None or sys.platform != "linux":
        return None
    # The event loop's own object may not have this option.
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        return same.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
