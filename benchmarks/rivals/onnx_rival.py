"""ONNX Runtime in float32: the published encoder exported by PyTorch, pooling included."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F
from transformers import BertModel

BATCH_TEXTS = 32
MAX_TOKENS = 512


class OnnxRival:
    """Sorts by length and pads in batches of 32, as sentence-transformers does."""

    def __init__(self, folder: Path, threads: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.enable_padding()
        self._session = _session(folder, threads)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        longest_first = np.argsort([-len(text) for text in texts], kind="stable")
        vectors = np.concatenate(
            [
                self._embed_batch([texts[index] for index in longest_first[at : at + BATCH_TEXTS]])
                for at in range(0, len(texts), BATCH_TEXTS)
            ]
        )
        in_order = np.empty_like(vectors)
        in_order[longest_first] = vectors
        return in_order

    def _embed_batch(self, texts: Sequence[str]) -> NDArray[np.float32]:
        encodings = self._tokenizer.encode_batch_fast(list(texts))
        vectors: NDArray[np.float32] = self._session.run(
            ["vectors"],
            {
                "ids": np.array([encoding.ids for encoding in encodings]),
                "mask": np.array([encoding.attention_mask for encoding in encodings]),
            },
        )[0]
        return vectors


class _Embedder(torch.nn.Module):
    """Ids and mask to unit vectors: BERT, masked mean, L2."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states = self.bert(
            input_ids=ids, attention_mask=mask, token_type_ids=torch.zeros_like(ids)
        ).last_hidden_state
        weights = mask.unsqueeze(-1).to(states.dtype)
        return F.normalize((states * weights).sum(1) / weights.sum(1))


def _session(folder: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    with _exported(folder) as path:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@contextmanager
def _exported(folder: Path) -> Iterator[Path]:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    bert = BertModel.from_pretrained(folder, attn_implementation="sdpa", add_pooling_layer=False)
    sample = torch.ones(2, 8, dtype=torch.long)
    texts = torch.export.Dim("texts", min=1, max=4096)
    tokens = torch.export.Dim("tokens", min=1, max=MAX_TOKENS)
    with TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        path = Path(scratch) / "encoder.onnx"
        torch.onnx.export(
            _Embedder(bert).eval(),
            (sample, sample),
            path,
            input_names=["ids", "mask"],
            output_names=["vectors"],
            dynamic_shapes={"ids": {0: texts, 1: tokens}, "mask": {0: texts, 1: tokens}},
            dynamo=True,
            verbose=False,
        )
        yield path
