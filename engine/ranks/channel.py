"""What the first rank and another tell each other besides the numbers of a reading.

A connection of Python's multiprocessing: its two ends prove that they know the same key, and one
notices at once when the other's process ends.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, TypeAlias

from engine.config import EngineConfig
from engine.errors import LLNError
from engine.ranks.stretch_run import StretchText
from engine.types import ModelInfo

PROTOCOL = 1
"""Ranks of different protocols do not work together."""

_SEND_S = 10
"""How long a message may wait for a peer that does not read."""


@dataclass(frozen=True)
class Hello:
    """A rank's first words."""

    rank: int
    num_ranks: int
    protocol: int = PROTOCOL


@dataclass(frozen=True)
class Welcome:
    """What a rank is to load."""

    models: tuple[str, ...]
    config: EngineConfig


@dataclass(frozen=True)
class Failed:
    """Why a rank cannot go on: with its start, or with one reading."""

    error: LLNError
    reading: int = 0


@dataclass(frozen=True)
class Ready:
    """The models that a rank has loaded."""

    models: tuple[ModelInfo, ...]


@dataclass(frozen=True)
class Form:
    """Join a new group. Whatever was being read is abandoned."""

    generation: int
    rank: int  # in the group, where lost ranks have left no gap
    num_ranks: int


@dataclass(frozen=True)
class Formed:
    """The rank has joined the group, or could not."""

    generation: int
    is_joined: bool


@dataclass(frozen=True)
class Read:
    """Read a stretch of a text."""

    reading: int
    model: str
    text: StretchText
    keep_projections: bool


@dataclass(frozen=True)
class Beat:
    """The rank is well."""


@dataclass(frozen=True)
class Stop:
    """The first rank stops."""


Message: TypeAlias = Hello | Welcome | Failed | Ready | Form | Formed | Read | Beat | Stop

_Round: TypeAlias = "Callable[[Connection[Any, Any], bytes], None]"


class Channel:
    """One end of the connection between the first rank and another."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.connection = connection
        self._sending = threading.Lock()  # the messages of two threads must not mix
        # A peer that hangs must not hold up this end for ever.
        with socket.socket(fileno=os.dup(connection.fileno())) as shared:
            timeout = struct.pack("ll", _SEND_S, 0)
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)

    @classmethod
    def connect(cls, address: tuple[str, int], key: bytes, timeout_s: float) -> Channel:
        """Raises AuthenticationError if the first rank has another key, EOFError or OSError if it
        does not answer."""
        connected = socket.create_connection(address, timeout_s)
        return cls._proven(connected, key, (answer_challenge, deliver_challenge))

    @classmethod
    def accept(cls, connected: socket.socket, key: bytes) -> Channel:
        """The other end of `connect`. Raises what that raises."""
        return cls._proven(connected, key, (deliver_challenge, answer_challenge))

    @classmethod
    def _proven(cls, connected: socket.socket, key: bytes, rounds: Sequence[_Round]) -> Channel:
        connected.setblocking(True)  # a connection reads and writes past the socket's own timeout
        channel = cls(Connection(connected.detach()))
        try:
            for ask_or_answer in rounds:
                ask_or_answer(channel.connection, key)
        except BaseException:
            channel.close()
            raise
        return channel

    def send(self, message: Message) -> None:
        """Raises OSError if the peer is gone or does not read."""
        with self._sending:
            self.connection.send(message)

    def receive(self, timeout_s: float) -> Message | None:
        """The next message; None if there is none yet. Raises EOFError or OSError if the peer is
        gone."""
        if not self.connection.poll(timeout_s):
            return None
        message: Message = self.connection.recv()
        return message

    def has_unread(self) -> bool:
        """Whether the peer has said something, or has gone, since the last message was read."""
        return self.connection.poll(0)

    def close(self) -> None:
        self.connection.close()


class Pulse:
    """Sends a beat once in a while, however often it is asked."""

    def __init__(self, channel: Channel, every_s: float = 1.0) -> None:
        self._channel = channel
        self._every_s = every_s
        self._sent_at = time.monotonic()

    def beat(self) -> None:
        if time.monotonic() - self._sent_at >= self._every_s:
            self._channel.send(Beat())
            self._sent_at = time.monotonic()
