"""A client in the shape of sentence-transformers: `LLNClient().encode(texts)`.

It needs nothing but NumPy and the standard library, and no other module of this package.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from email.message import Message
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

_FULL = (429, 503)


class LLNClientError(Exception):
    """What the server refused, in its own words. The fields are those of its error envelope."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(error.get("message", f"the server answered {status}"))
        self.status = status
        self.code = error.get("code")
        self.param = error.get("param")
        self.limit = error.get("limit")
        self.actual = error.get("actual")


class LLNClient:
    """One model of one server. Has no state of its own, so threads may share it."""

    def __init__(
        self,
        url: str = "http://localhost:8000",
        *,
        model: str | None = None,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        max_request_bytes: int = 4 * 1024 * 1024,
    ) -> None:
        """While the server is full, calls wait and try again until `timeout_s` is over. Texts of
        more than `max_request_bytes` together go in several requests, a larger one alone. Servers
        read LLN_MAX_BODY_BYTES at once: 32 MiB by default, 8 in the Kubernetes manifests.

        All files are PEM: the authority that signed the server's certificate, and what a server
        that asks for a client's certificate is shown; the key may be in `cert_file` too.
        """
        self._url = url.rstrip("/")
        self._model = model
        self._timeout_s = timeout_s
        self._max_request_bytes = max_request_bytes
        self._headers = {"content-type": "application/json"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"
        tls = _tls_context(ca_file, cert_file, key_file)
        self._opener = urllib.request.build_opener(_Http(), _Https(context=tls))

    def encode(
        self,
        inputs: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        batch_size: int = 256,
        show_progress_bar: bool | None = None,
        normalize_embeddings: bool = True,
        truncate_dim: int | None = None,
        truncate: Literal["error", "start", "end"] = "error",
        convert_to_numpy: bool = True,
    ) -> Vectors | list[Vectors]:
        """[n, dim] of n texts, [dim] of a lone one. With `convert_to_numpy=False` a list.

        Texts of any length are read to their end; `truncate` says what becomes of those that are
        beyond even the server's limit. `batch_size` is the most texts in one request;
        `show_progress_bar` is there for callers of sentence-transformers, and shows none.
        """
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        options = {
            "prompt_name": prompt_name,
            "normalize": normalize_embeddings,
            "dimensions": truncate_dim,
            "truncate": truncate,
        }
        found: list[Vectors] = []
        for batch in _batches(texts, batch_size, self._max_request_bytes):
            found += self._embed(batch, options)
        if isinstance(inputs, str):
            return found[0]
        if not convert_to_numpy:
            return found
        return (
            np.stack(found) if found else np.empty((0, self.get_embedding_dimension()), np.float32)
        )

    def encode_query(self, inputs: str | Sequence[str], **options: Any) -> Any:
        """With the model's own prompt for queries, if it has one."""
        return self.encode(inputs, **{"prompt_name": self._prompt("query"), **options})

    def encode_document(self, inputs: str | Sequence[str], **options: Any) -> Any:
        """With the model's own prompt for documents, if it has one."""
        name = self._prompt("document") or self._prompt("passage")
        return self.encode(inputs, **{"prompt_name": name, **options})

    def similarity(self, first: Vectors, second: Vectors) -> Vectors:
        """The cosine of each row of one with each row of the other."""
        left, right = (_normalised(np.atleast_2d(vectors)) for vectors in (first, second))
        cosines: Vectors = left @ right.T
        return cosines

    def get_embedding_dimension(self) -> int:
        return int(self._model_info()["dim"])

    get_sentence_embedding_dimension = get_embedding_dimension

    @property
    def max_seq_length(self) -> int:
        """Tokens of the longest text that the server reads."""
        return int(self._model_info()["max_tokens"])

    def _prompt(self, name: str) -> str | None:
        return name if name in self._model_info()["prompts"] else None

    def _model_info(self) -> dict[str, Any]:
        models = self._request("/v1/models")["data"]
        chosen = (info for info in models if self._model in (None, info["id"]))
        # For a name that is not listed the server says which ones are.
        found: dict[str, Any] = next(chosen, {}) or self._request(
            f"/v1/models/{_in_path(self._model)}"
        )
        return found

    def _embed(self, texts: list[str], options: dict[str, Any]) -> list[Vectors]:
        body = {"input": texts, "model": self._model, "encoding_format": "base64", **options}
        data = self._request("/v1/embeddings", body)["data"]
        return [_vector(item["embedding"]) for item in data]

    def _request(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, self._headers)
        give_up_at = time.monotonic() + self._timeout_s
        while True:
            left_s = max(give_up_at - time.monotonic(), 0.001)
            try:
                with self._opener.open(request, timeout=left_s) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as refusal:
                wait_s = _retry_after_s(refusal.headers)
                if refusal.code not in _FULL or time.monotonic() + wait_s >= give_up_at:
                    raise LLNClientError(refusal.code, _error_of(refusal)) from None
            time.sleep(wait_s)


class _HeardOut(http.client.HTTPConnection):
    """A server that refuses a request by its headers may answer and hang up while the body is
    still being sent. What it said is worth more than that it hung up."""

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        with suppress(ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            super().send(data)


class _HeardOutOverTls(_HeardOut, http.client.HTTPSConnection):
    """The same, encrypted."""


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HeardOut, req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, context: ssl.SSLContext | None) -> None:
        super().__init__(context=context)
        self._tls = context

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HeardOutOverTls, req, context=self._tls)


def _batches(texts: Sequence[str], max_texts: int, max_bytes: int) -> Iterator[list[str]]:
    """In their order; a text that is larger than a request should be goes alone."""
    batch: list[str] = []
    num_bytes = 0
    for text in texts:
        size = len(json.dumps(text))
        if batch and (len(batch) >= max_texts or num_bytes + size > max_bytes):
            yield batch
            batch, num_bytes = [], 0
        batch.append(text)
        num_bytes += size
    if batch:
        yield batch


def _tls_context(
    ca_file: str | None, cert_file: str | None, key_file: str | None
) -> ssl.SSLContext | None:
    """None for what Python does by itself."""
    if key_file is not None and cert_file is None:
        raise ValueError("key_file needs cert_file")
    if ca_file is None and cert_file is None:
        return None
    context = ssl.create_default_context(cafile=ca_file)
    if cert_file is not None:
        context.load_cert_chain(cert_file, key_file)
    return context


def _in_path(model: str | None) -> str:
    """A model's name as the route takes it: of many characters, and with slashes."""
    return urllib.parse.quote(str(model))


def _retry_after_s(headers: Message) -> float:
    value = headers.get("retry-after", "1")
    return float(value) if value.isdecimal() else 1.0


def _error_of(refusal: urllib.error.HTTPError) -> dict[str, Any]:
    """What a proxy in between says may be anything."""
    try:
        error = json.load(refusal)["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}


def _vector(encoded: str) -> Vectors:
    """A copy, since the bytes themselves cannot be written to."""
    return np.frombuffer(base64.b64decode(encoded), "<f4").astype(np.float32)


def _normalised(vectors: Vectors) -> Vectors:
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    normalised: Vectors = vectors / np.where(norms == 0, 1, norms)
    return normalised
