"""What became of one case of a suite, and how a case is put to the server."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import NamedTuple

_SILENCE_S = 1.0
"""A server that says nothing for so long waits for more of the request."""
_STATUS = re.compile(rb"HTTP/1\.1 ([2-5]\d{2}) ")
"""The status of an answer; "100 Continue" is not one."""


class Address(NamedTuple):
    host: str
    port: int


@dataclass(frozen=True)
class Verdict:
    case: str
    passed: bool
    wanted: str = ""
    found: str = ""


@dataclass(frozen=True)
class Answer:
    statuses: tuple[int, ...]
    closed: bool
    """Whether the server ended the connection, and did not wait for more."""

    def __str__(self) -> str:
        said = " ".join(map(str, self.statuses)) or "nothing"
        return f"{said}, then {'closed' if self.closed else 'waits for more'}"


def send(address: Address, request: bytes) -> Answer:
    content, closed = b"", False
    with socket.create_connection(address, _SILENCE_S) as connection:
        try:
            connection.sendall(request)
            while received := connection.recv(65_536):
                content += received
            closed = True
        except TimeoutError:
            pass
        except OSError:  # reset: the server had not read all of it
            closed = True
    return Answer(tuple(int(status) for status in _STATUS.findall(content)), closed)
