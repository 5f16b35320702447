"""Reads requests from the bytes of a connection, one at a time, and stricter than llhttp does.

If a proxy and a server read one request differently, an attacker can make them disagree on where it
ends, so that part of a body counts as the next request (request smuggling). Whatever a proxy might
read differently is refused.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import httptools

MAX_HEAD_BYTES = 65_536
"""Bytes that a request line and its headers may have, and what stands around the chunks of a body
between two bytes of it."""

Headers = list[tuple[bytes, bytes]]

_END = b"\r\n\r\n"
"""What ends a head, and a body in chunks."""

_BEGINS_OF_END = (_END[:3], _END[:2], _END[:1])

_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-~]+) HTTP/(1\.[01])")
_OFFER = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)
_AUTHORITY = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[-\w.~!$&'()*+;=%]+)(?::[0-9]*)?", re.ASCII)
_ABSOLUTE_FORM = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE)


class NotHttp(Exception):
    """What arrived is no request, or one that others might read differently."""


class Head(NamedTuple):
    method: str
    path: bytes
    query: bytes
    version: str
    headers: Headers
    keep_alive: bool

    @property
    def expects_continue(self) -> bool:
        """Whether the caller waits for a word before it sends the body."""
        return self.version != "1.0" and any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in self.headers
        )


class RequestReader:
    """llhttp's parser is given the bytes of one request at most, its line aside.

    Alone it reads on as long as there is something, takes the fields of a trailer for headers, ends
    with a request that offers another protocol, and knows no methods but those on its list.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._unread = bytearray()
        self._searched = 0
        """How much of it was searched for the end of a head."""

        self._headers: Headers = []
        self._may_begin = False
        self._has_head = False
        self._is_complete = True
        self._is_last = False
        self._left: int | None = 0
        """Bytes that are missing of a body of stated length."""

        self._body: list[bytes] = []
        self._num_around = 0
        """Bytes that came since the last of a body in chunks."""

    @property
    def has_unread(self) -> bool:
        return bool(self._unread)

    @property
    def is_within_body(self) -> bool:
        """Whether a head was read, and what it announces has not all arrived."""
        return not self._is_complete

    @property
    def is_done(self) -> bool:
        """Whether the last request of the connection has arrived."""
        return self._is_last and self._is_complete

    def receive(self, data: bytes) -> None:
        """What comes after the last request counts for nothing."""
        if not self.is_done:
            self._unread += data

    def close(self) -> None:
        """The parser and this refer to each other."""
        del self._parser
        self._unread.clear()

    def read_head(self) -> Head | None:
        """None while its end has not arrived. Raises NotHttp."""
        num_bytes = self._find_head()
        if num_bytes is None:
            return None
        head = bytes(self._unread[:num_bytes])
        del self._unread[:num_bytes]
        try:
            return self._parse(head)
        except NotHttp:
            self._is_complete = True  # it has no body
            raise

    def read_body(self) -> bytes:
        """What has arrived of the body. Raises NotHttp."""
        return self._read_chunks() if self._left is None else self._read_length(self._left)

    def _find_head(self) -> int | None:
        """The bytes of the head, None while its end has not arrived. What can be no head is refused
        before: TLS and others may never end a line."""
        unread, start = self._unread, self._searched
        end = unread.find(_END, max(start - len(_END), 0))
        num_bytes = end + len(_END) if end >= 0 else len(unread)
        if unread and unread[0] <= 0x20:
            raise NotHttp("the first line is empty, or no text")
        if unread.count(b"\n", start, num_bytes) != unread.count(b"\r\n", start, num_bytes):
            raise NotHttp("a line of the head ends without a carriage return")
        if num_bytes > MAX_HEAD_BYTES:
            raise NotHttp(f"the head has more than {MAX_HEAD_BYTES} bytes")
        if end < 0:
            self._searched = num_bytes - unread.endswith(b"\r")
            return None
        self._searched = 0
        return num_bytes

    def _parse(self, head: bytes) -> Head:
        line, _, fields = head.partition(b"\r\n")
        found = _LINE.fullmatch(line)
        if found is None:
            raise NotHttp(_wrong_in(line))
        method, target, version = found.groups()
        self._headers, self._may_begin, self._has_head = [], True, False
        # Offers of other protocols are passed over: the request is answered in this one.
        self._feed(_OFFER.sub(b"", b"POST / HTTP/%b\r\n%b" % (version, fields)))
        if not self._has_head:
            raise NotHttp("the head does not end where it seems to")
        headers = self._headers
        self._left = _length_of(headers, version)
        _check_hosts(headers, version)
        path, headers = _in_origin_form(method, target, headers)
        self._is_last = self._is_last or version == b"1.0"
        path, _, query = path.partition(b"?")
        return Head(method.decode(), path, query, version.decode(), headers, not self._is_last)

    def _read_length(self, left: int) -> bytes:
        piece = bytes(self._unread[:left])
        del self._unread[:left]
        self._left = left - len(piece)
        self._feed(piece)
        return self._taken_body()

    def _read_chunks(self) -> bytes:
        """The end of a body in chunks looks like that of a head, so that reading up to each such
        place never goes beyond it."""
        unread, start = bytes(self._unread), 0
        while self.is_within_body and start < len(unread):
            end = unread.find(_END, start)
            stop = end + len(_END) if end >= 0 else len(unread) - _begun_end(unread[start:])
            if stop == start:
                break
            self._feed_around(unread[start:stop])
            start = stop
        del self._unread[:start]
        return self._taken_body()

    def _feed_around(self, piece: bytes) -> None:
        num_pieces = len(self._body)
        self._feed(piece)
        self._num_around = self._num_around + len(piece) if num_pieces == len(self._body) else 0
        if self._num_around > MAX_HEAD_BYTES:
            raise NotHttp(f"more than {MAX_HEAD_BYTES} bytes stand between two of the body")

    def _feed(self, piece: bytes) -> None:
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserError as error:
            raise NotHttp(str(error)) from None

    def _taken_body(self) -> bytes:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        return body

    # What the parser calls.

    def on_message_begin(self) -> None:
        """Refuses a request that would begin within the body of another, should it ever happen."""
        if not self._may_begin:
            raise NotHttp("a request begins within another")
        self._may_begin = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:
            self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        self._has_head, self._is_complete = True, False
        self._is_last = not self._parser.should_keep_alive()  # it forgets with the request's end

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._is_complete = True
        self._num_around = 0


def _begun_end(unread: bytes) -> int:
    """How many of the last bytes may be the beginning of an end."""
    return next((len(begin) for begin in _BEGINS_OF_END if unread.endswith(begin)), 0)


def _wrong_in(line: bytes) -> str:
    """What is wrong with a first line. Clients send letters as they were typed, without a word."""
    stranger = next((byte for byte in line if byte > 0x7E), None)
    if stranger is None:
        return "its first line is not a method, a target and HTTP/1.1 or HTTP/1.0"
    return f"its first line has the byte {stranger:#04x}; percent-encode what is not ASCII (%C3%A9)"


def _length_of(headers: Headers, version: bytes) -> int | None:
    """The bytes of the body, None if it comes in chunks. llhttp refuses to be told both."""
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    lengths = [value for name, value in headers if name == b"content-length"]
    if not codings:
        return int(lengths[0]) if lengths else 0
    if version == b"1.0":
        raise NotHttp("HTTP/1.0 has no Transfer-Encoding")
    if [coding.lower() for coding in codings] != [b"chunked"]:
        raise NotHttp("a Transfer-Encoding other than chunked")
    return None


def _in_origin_form(method: bytes, target: bytes, headers: Headers) -> tuple[bytes, Headers]:
    """The target as a path, and the headers with its host in Host."""
    if b"#" in target:
        raise NotHttp("the target has a fragment")
    if target.startswith(b"/") or (target == b"*" and method == b"OPTIONS"):
        return target, headers
    if method == b"CONNECT":
        return target, headers  # refused as a method that no route has
    absolute = _ABSOLUTE_FORM.fullmatch(target)
    if absolute is None:
        raise NotHttp("the target is not a path")
    host, path = absolute.groups()
    _check_authority(host, "the target")
    kept = [(name, value) for name, value in headers if name != b"host"]
    return path if path.startswith(b"/") else b"/" + path, [(b"host", host), *kept]


def _check_hosts(headers: Headers, version: bytes) -> None:
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1 or not (hosts or version == b"1.0"):
        raise NotHttp(f"{len(hosts) or 'no'} Host headers")
    for host in hosts:
        _check_authority(host, "Host")


def _check_authority(value: bytes, place: str) -> None:
    if not _AUTHORITY.fullmatch(value):
        raise NotHttp(f"{place} names no host, or more than that")
