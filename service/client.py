"""A client in the shape of sentence-transformers: `LLNClient().encode(texts)`.

It needs nothing but NumPy and the standard library, and no other module of this package.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
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
    ) -> None:
        """While the server is full, calls wait and try again until `timeout_s` is over.

        All files are PEM: the authority that signed the server's certificate, and what a server
        that asks for a client's certificate is shown; the key may be in `cert_file` too.
        """
        self._url = url.rstrip("/")
        self._model = model
        self._timeout_s = timeout_s
        self._headers = {"content-type": "application/json"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._tls = _tls_context(ca_file, cert_file, key_file)

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
        beyond even the server's limit. `batch_size` is the number of texts in one request;
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
        for start in range(0, len(texts), batch_size):
            found += self._embed(texts[start : start + batch_size], options)
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
        return [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in data]

    def _request(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, self._headers)
        give_up_at = time.monotonic() + self._timeout_s
        while True:
            left_s = max(give_up_at - time.monotonic(), 0.001)
            try:
                with urllib.request.urlopen(request, timeout=left_s, context=self._tls) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as refusal:
                wait_s = _retry_after_s(refusal.headers)
                if refusal.code not in _FULL or time.monotonic() + wait_s >= give_up_at:
                    raise LLNClientError(refusal.code, _error_of(refusal)) from None
            time.sleep(wait_s)


def _tls_context(
    ca_file: str | None, cert_file: str | None, key_file: str | None
) -> ssl.SSLContext | None:
    """None for what urllib does by itself."""
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


def _normalised(vectors: Vectors) -> Vectors:
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    normalised: Vectors = vectors / np.where(norms == 0, 1, norms)
    return normalised
