"""A served model as an encoder of MTEB: documents are read whole, by the server.

    import mteb
    from lln.mteb import ServedEncoder

    tasks = mteb.get_tasks(tasks=["LEMBQMSumRetrieval"])
    mteb.evaluate(ServedEncoder("http://localhost:8000"), tasks)

A model in a folder needs none of this: MTEB takes `SentenceTransformer(folder)` itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from mteb.models import ModelMeta
from numpy.typing import NDArray

from service.client import LLNClient

Vectors = NDArray[np.float32]


class ServedEncoder:
    """Implements MTEB's EncoderProtocol with a client of the server."""

    def __init__(self, url: str, model: str = "default", **options: Any) -> None:
        """`options` are those of LLNClient."""
        self._client = LLNClient(url, model=model, **options)
        self.mteb_model_meta = ModelMeta.create_empty(
            overwrites={
                "name": model if "/" in model else f"lln/{model}",
                "max_tokens": self._client.max_seq_length,
                "embed_dim": self._client.get_embedding_dimension(),
            }
        )

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        prompt_type: Any = None,
        **_: Any,
    ) -> Vectors:
        """The vectors of all texts of these batches, with the prompt of queries or documents."""
        texts = [text for batch in inputs for text in batch["text"]]
        kind = getattr(prompt_type, "value", prompt_type)
        encode = {
            "query": self._client.encode_query,
            "document": self._client.encode_document,
        }.get(kind, self._client.encode)
        vectors: Vectors = np.asarray(encode(texts), dtype=np.float32)
        return vectors

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Vectors:
        """The cosine of each row of the first with each row of the second."""
        return self._client.similarity(np.asarray(embeddings1), np.asarray(embeddings2))

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Vectors:
        """The cosine of each row of the first with the same row of the second."""
        pairs = zip(np.asarray(embeddings1), np.asarray(embeddings2), strict=True)
        return np.array([self._client.similarity(a, b)[0, 0] for a, b in pairs], np.float32)
