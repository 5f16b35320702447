"""The name of this server among those behind one address."""

from __future__ import annotations

import re
import socket

LONGEST_NAME = 64
REPLICA_NAME = f"[A-Za-z0-9.-]{{1,{LONGEST_NAME}}}"


def host_name() -> str:
    """Returns the host's name as a replica's: in Kubernetes, the pod's."""
    return re.sub("[^A-Za-z0-9.-]", "-", socket.gethostname())[:LONGEST_NAME] or "unnamed"


def checked_name(name: str) -> str:
    """Raises ValueError for a name that no replica may have."""
    if not re.fullmatch(REPLICA_NAME, name):
        raise ValueError(f"write 1 to {LONGEST_NAME} letters (A-Z), digits, dots and hyphens")
    return name
