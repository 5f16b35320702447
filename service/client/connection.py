"""Requests in JSON to one server: over HTTP or TLS, with its key, sent again while it is full."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.request
from contextlib import suppress
from email.message import Message
from typing import Any

_RETRIED_STATUSES = (429, 503)
_REDIRECTS = range(300, 400)
_URL = re.compile(r"https?://[^/]", re.IGNORECASE)
_INPUT = re.compile(r"input\[(\d+)\]")


class LLNClientError(Exception):
    """An error answer of the server. The attributes are the fields of its error envelope."""

    def __init__(self, status: int | None, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self._error = error
        self.status = status
        self.code = error.get("code")
        self.param = error.get("param")
        self.limit = error.get("limit")
        self.actual = error.get("actual")

    def after(self, num_texts: int) -> LLNClientError:
        """The same error, of a request whose texts come after others: it counts them too."""
        place = _INPUT.fullmatch(self.param or "")
        if place is None:
            return self
        new = f"input[{int(place[1]) + num_texts}]"
        message = str(self).replace(place[0], new, 1)
        return LLNClientError(self.status, self._error | {"message": message, "param": new})

    def __reduce__(self) -> tuple[Any, ...]:
        """How it gets from one process to another."""
        return type(self), (self.status, self._error)


class LLNConnectionError(LLNClientError, ConnectionError):
    """No answer came: the server cannot be reached, the connection broke, or the time was up. The
    cause (`__cause__`) says which; `status` is None."""


class Connection:
    """It is stateless, so threads may share it: each request has a connection of its own."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None,
        timeout_s: float,
        ca_file: str | None,
        cert_file: str | None,
        key_file: str | None,
    ) -> None:
        self._url = _checked_url(url)
        self._timeout_s = timeout_s
        self._headers = {"content-type": "application/json"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {_checked_key(api_key)}"
        tls = _tls_context(ca_file, cert_file, key_file)
        self._opener = urllib.request.build_opener(_Http(), _Https(context=tls), _NoRedirects())

    def request(
        self, path: str, body: dict[str, Any] | None = None, *, method: str | None = None
    ) -> Any:
        """The answer. Raises LLNClientError for an error answer, or for one that is not JSON, and
        LLNConnectionError if none came."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, self._headers, method=method)
        content = self._content(request)
        try:
            return json.loads(content)
        except ValueError as error:
            message = f"{self._url} answered with something other than JSON: is it an LLN server?"
            raise LLNClientError(200, {"message": message, "code": "not_json"}) from error

    def _content(self, request: urllib.request.Request) -> bytes:
        """What the server answers, once it is not full."""
        give_up_at = time.monotonic() + self._timeout_s
        while True:
            left_s = max(give_up_at - time.monotonic(), 0.001)
            try:
                with self._opener.open(request, timeout=left_s) as answer:
                    content: bytes = answer.read()
                    return content
            except urllib.error.HTTPError as refusal:
                with refusal:  # or its connection stays open
                    wait_s = self._wait_s(refusal, give_up_at)
            except (OSError, http.client.HTTPException, UnicodeError) as error:  # of its name too
                reason = error.reason if isinstance(error, urllib.error.URLError) else error
                message = f"no answer came from {self._url}: {reason}"
                raise LLNConnectionError(None, {"message": message}) from error
            time.sleep(wait_s)

    def _wait_s(self, refusal: urllib.error.HTTPError, give_up_at: float) -> float:
        """How long to wait before the request is sent again. Raises LLNClientError if it is not."""
        if (place := refusal.headers.get("location")) and refusal.code in _REDIRECTS:
            raise LLNClientError(refusal.code, _redirected(self._url, place)) from None
        wait_s = _retry_after_s(refusal.headers)
        if refusal.code not in _RETRIED_STATUSES or time.monotonic() + wait_s >= give_up_at:
            told = {"message": f"{self._url} answered with status {refusal.code}"}
            raise LLNClientError(refusal.code, told | _error_of(refusal)) from None
        return wait_s


def _checked_url(url: str) -> str:
    if not _URL.match(str(url)):
        raise ValueError(f"the server's address must be like http://localhost:8000, got {url!r}")
    return url.rstrip("/")


def _checked_key(key: str) -> str:
    """The library's own error would show the key."""
    if not key.isprintable() or not key.isascii():
        raise ValueError(
            "the API key has a character that no key may have, such as the end of a line"
        )
    return key


class _OverHttp(http.client.HTTPConnection):
    """Reads the answer even if the server closes the connection while the body is being sent.

    A server that rejects a request by its headers does that, and its answer has the reason.
    """

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        with suppress(ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            super().send(data)


class _OverTls(_OverHttp, http.client.HTTPSConnection):
    """The same over TLS."""


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_OverHttp, req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, context: ssl.SSLContext | None) -> None:
        super().__init__(context=context)
        self._tls = context

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_OverTls, req, context=self._tls)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """urllib would send the API key to whatever host a redirect names, and the texts to none: it
    makes a GET of a POST."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _redirected(url: str, place: str) -> dict[str, Any]:
    message = f"{url} redirects to {place}: give the client the server's own address"
    return {"message": message, "code": "redirected", "actual": place}


def _tls_context(
    ca_file: str | None, cert_file: str | None, key_file: str | None
) -> ssl.SSLContext | None:
    """Returns None for Python's default context."""
    if key_file is not None and cert_file is None:
        raise ValueError("key_file needs cert_file")
    if ca_file is None and cert_file is None:
        return None
    context = ssl.create_default_context(cafile=ca_file)
    if cert_file is not None:
        context.load_cert_chain(cert_file, key_file)
    return context


def _retry_after_s(headers: Message) -> float:
    value = headers.get("retry-after", "1")
    return float(value) if value.isdecimal() else 1.0


def _error_of(refusal: urllib.error.HTTPError) -> dict[str, Any]:
    """Returns the error envelope, or nothing if the body does not arrive or is something else, as
    from a proxy."""
    try:
        error = json.load(refusal)["error"]
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return {}
    return error if isinstance(error, dict) else {}
