"""Where the other ranks connect to the first one."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable

from engine.ranks.channel import Channel

_TICK_S = 0.25
"""How often the door checks whether it was closed: closing a socket wakes no thread in accept."""

logger = logging.getLogger(__name__)


class Door:
    """Admits ranks that know the key. Each connection has its own thread, so a silent one does not
    hold up the others."""

    def __init__(self, host: str, key: bytes, let_in: Callable[[Channel], None]) -> None:
        """`let_in` is called from those threads."""
        self._key, self._let_in = key, let_in
        self._socket = socket.create_server((host, 0))
        self._socket.settimeout(_TICK_S)
        self.port: int = self._socket.getsockname()[1]
        self._closed = threading.Event()
        self._start(self._accept)

    def close(self) -> None:
        self._closed.set()

    def _accept(self) -> None:
        with self._socket:
            while not self._closed.is_set():
                try:
                    connected, _ = self._socket.accept()
                except TimeoutError:
                    continue
                except OSError as error:  # too many open files, for one
                    logger.warning("No rank can connect just now: %s", error)
                    self._closed.wait(_TICK_S)
                    continue
                self._start(self._answer, connected)

    def _answer(self, connected: socket.socket) -> None:
        try:
            channel = Channel.accept(connected, self._key)
        except Exception as error:  # who does not know the key, or speaks another protocol
            logger.warning("A connection to the ranks was refused", exc_info=error)
            return
        self._let_in(channel)

    def _start(self, work: Callable[..., None], *args: object) -> None:
        threading.Thread(target=work, args=args, name="lln-ranks-door", daemon=True).start()
