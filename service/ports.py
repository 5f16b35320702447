"""Taking the ports to listen on."""

from __future__ import annotations

import socket

from service.addresses import in_url
from service.errors import PortInUse


def bind_port(host: str, port: int) -> socket.socket:
    """Takes a port before the weights load: a conflict should not cost that wait.

    Listens as well: two sockets can be bound to one port, and the event loop would not report the
    second one's failure to listen.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise PortInUse(f"cannot listen on {in_url(host)}:{port}: {error.strerror}") from error
    return listener
