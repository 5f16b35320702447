"""What a client asks of a model: vectors of texts, and of documents with their chunks."""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.client.connection import Connection, LLNClientError

Vectors = NDArray[np.float32]

_DTYPES = {
    "float": "<f4",
    "float16": "<f2",
    "int8": "i1",
    "uint8": "u1",
    "binary": "i1",
    "ubinary": "u1",
}
"""How the numbers of each `output_dtype` are sent."""


class LivingDocument(NamedTuple):
    """A document's vectors, and with a record what it takes to read it on after a change."""

    vector: Any
    """[dim], of float32 or as output_dtype says; None if it was not asked for."""
    chunks: list[dict[str, Any]]
    """As POST /v1/documents answers them, each with its `vector` as an array."""
    record: bytes | None
    details: dict[str, Any]
    """The other fields of the answer, such as `tokens_read`, `staleness` and `gone`."""


class LLNClient:
    """A client for one model of one server. It is stateless, so threads may share it."""

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
        """
        Args:
            url: The server's address.
            model: A model of the server. Its first one if not given.
            api_key: Sent with each request, if given.
            timeout_s: The time limit of one request, with its retries while the server is full. An
                answer that has begun may take longer, as long as it keeps coming.
            ca_file: PEM file of the CA that signed the server's certificate.
            cert_file: PEM file of the client certificate, for servers that require one.
            key_file: PEM file of its private key, which may be in `cert_file` instead.
            max_request_bytes: Texts of more bytes than this are split over several requests. Keep
                it below the server's LLN_MAX_BODY_BYTES: 32 MiB by default, 8 MiB in the
                Kubernetes manifests.
        """
        self._model = model
        self._max_request_bytes = max_request_bytes
        self._server = Connection(
            url,
            api_key=api_key,
            timeout_s=timeout_s,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
        )

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
        """Returns an array [n, dim] for n texts, or [dim] for a single one.

        With `convert_to_numpy=False` the result for several texts is a list of arrays. `truncate`
        applies to texts beyond the server's limit of tokens. `batch_size` is the most texts in one
        request. `show_progress_bar` has no effect; sentence-transformers has it.
        """
        texts = _texts_in(inputs)
        options = {
            "prompt_name": prompt_name,
            "normalize": normalize_embeddings,
            "dimensions": truncate_dim,
            "truncate": truncate,
        }
        found: list[Vectors] = []
        for batch in _batches(texts, batch_size, self._max_request_bytes):
            try:
                found += self._embed(batch, options)
            except LLNClientError as error:
                raise error.after(len(found)) from error.__cause__
        if isinstance(inputs, str):
            return found[0]
        if not convert_to_numpy:
            return found
        return (
            np.stack(found) if found else np.empty((0, self.get_embedding_dimension()), np.float32)
        )

    def encode_query(self, inputs: str | Sequence[str], **options: Any) -> Any:
        """Encodes with the model's prompt for queries, if it has one."""
        return self.encode(inputs, **{"prompt_name": self._prompt("query"), **options})

    def encode_document(self, inputs: str | Sequence[str], **options: Any) -> Any:
        """Encodes with the model's prompt for documents or passages, if it has one."""
        name = self._prompt("document") or self._prompt("passage")
        return self.encode(inputs, **{"prompt_name": name, **options})

    def embed_document(
        self,
        text: str,
        *,
        chunking: dict[str, Any] | None = None,
        title: str | None = None,
        record: bool = False,
        vector: bool = True,
        **options: Any,
    ) -> LivingDocument:
        """One vector of a document of any length, and one of each chunk. With a record,
        `update_document` reads it on after a change.

        With `vector=False` the answer has the vectors of the chunks alone. In the contexts
        "linked", "opening" and "alone" it then takes half the time.

        `chunking` and the options are the fields of POST /v1/documents.
        """
        body = {"text": text, "title": title, "record": record, "vector": vector, **options}
        return self._document("POST", body, chunking)

    def update_document(
        self,
        record: bytes,
        text: str,
        *,
        chunking: dict[str, Any] | None = None,
        title: str | None = None,
        max_staleness: float | None = None,
        exact: bool = False,
        **options: Any,
    ) -> LivingDocument:
        """The document as it is now: only segments that its record does not hold are read.

        With `max_staleness`, kept segments that may be staler are read again too; with `exact`,
        all are. Without `chunking` or `title`, those of the record hold; an empty title takes away
        the record's.
        """
        body = {
            "record": base64.b64encode(record).decode(),
            "text": text,
            "title": title,
            "max_staleness": max_staleness,
            "exact": exact,
            **options,
        }
        return self._document("PATCH", body, chunking)

    def _document(
        self, method: str, body: dict[str, Any], chunking: dict[str, Any] | None
    ) -> LivingDocument:
        body |= {"model": self._model, "encoding_format": "base64"}
        body |= {} if chunking is None else {"chunking": chunking}
        answer = self._server.request("/v1/documents", body, method=method)
        dtype = _DTYPES[body.get("output_dtype", "float")]
        chunks = answer.pop("chunks")
        for chunk in chunks:
            chunk["vector"] = _vector(chunk["vector"], dtype)
        vector, record = answer.pop("vector"), answer.pop("record", None)
        return LivingDocument(
            vector=None if vector is None else _vector(vector, dtype),
            chunks=chunks,
            record=None if record is None else base64.b64decode(record),
            details=answer,
        )

    def similarity(self, first: Vectors, second: Vectors) -> Vectors:
        """Returns the cosine of each row of `first` with each row of `second`."""
        left, right = (_normalised(np.atleast_2d(vectors)) for vectors in (first, second))
        cosines: Vectors = left @ right.T
        return cosines

    def get_embedding_dimension(self) -> int:
        return int(self._model_info()["dim"])

    get_sentence_embedding_dimension = get_embedding_dimension

    @property
    def max_seq_length(self) -> int:
        """The most tokens of a text that the server accepts."""
        return int(self._model_info()["max_tokens"])

    def _prompt(self, name: str) -> str | None:
        return name if name in self._model_info()["prompts"] else None

    def _model_info(self) -> dict[str, Any]:
        models = self._server.request("/v1/models")["data"]
        chosen = (info for info in models if self._model in (None, info["id"]))
        # Asking for an unlisted name raises the server's error, which lists the known ones.
        found: dict[str, Any] = next(chosen, {}) or self._server.request(
            f"/v1/models/{_in_path(self._model)}"
        )
        return found

    def _embed(self, texts: list[str], options: dict[str, Any]) -> list[Vectors]:
        body = {"input": texts, "model": self._model, "encoding_format": "base64", **options}
        data = self._server.request("/v1/embeddings", body)["data"]
        return [_vector(item["embedding"]) for item in data]


def _texts_in(inputs: Any) -> list[str]:
    """Raises TypeError for what would pass as texts and is not: the names of a dict, and numbers,
    which the server takes for the token ids of one text."""
    if isinstance(inputs, str):
        return [inputs]
    is_sequence = isinstance(inputs, Iterable) and not isinstance(inputs, Mapping | bytes)
    texts = list(inputs) if is_sequence else []
    if not is_sequence or any(isinstance(text, int) for text in texts):
        kind = type(inputs).__name__
        raise TypeError(
            f"inputs must be a text or a list of texts, got {kind}{' with numbers' * is_sequence}"
        )
    return texts


def _batches(texts: Sequence[str], max_texts: int, max_bytes: int) -> Iterator[list[str]]:
    """Yields batches in order. A text of more than `max_bytes` is a batch of its own."""
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


def _in_path(model: str | None) -> str:
    """Quotes a model's name for a path. Slashes stay: the route accepts them."""
    return urllib.parse.quote(str(model))


def _vector(encoded: str, dtype: str = "<f4") -> NDArray[Any]:
    """Returns a copy: an array over bytes would be read-only."""
    numbers = np.frombuffer(base64.b64decode(encoded), dtype)
    return numbers.astype(numbers.dtype.newbyteorder("="))


def _normalised(vectors: Vectors) -> Vectors:
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    normalised: Vectors = vectors / np.where(norms == 0, 1, norms)
    return normalised
