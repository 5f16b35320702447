"""ONNX Runtime: the published encoder exported by PyTorch, pooling included.

In float32, or quantised to int8 as its documentation does: weights by channel, activations by
tensor, when they are known.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor
from torch.nn import functional as F
from transformers import BertModel

from benchmarks.rivals.padded import MAX_TOKENS, Ids, PaddedBatches
from benchmarks.rivals.silence import silence_loading
from engine.platform.device import cpu_multiplies_int8


class OnnxRival(PaddedBatches):
    def __init__(self, folder: Path, threads: int, *, int8: bool = False) -> None:
        session = _session(folder, threads, int8=int8)

        def run(ids: Ids, mask: Ids) -> NDArray[np.float32]:
            vectors: NDArray[np.float32] = session.run(["vectors"], {"ids": ids, "mask": mask})[0]
            return vectors

        super().__init__(folder, run)


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


def _session(folder: Path, threads: int, *, int8: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    with exported(folder) as path:
        if int8:
            wide, path = path, path.with_name("int8.onnx")
            logging.disable(logging.WARNING)  # it advises what changes nothing here
            quantize_dynamic(
                wide,
                path,
                weight_type=QuantType.QInt8,
                per_channel=True,
                reduce_range=not cpu_multiplies_int8(),  # as advised without VNNI: sums overflow
            )
            logging.disable(logging.NOTSET)
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@contextmanager
def exported(folder: Path) -> Iterator[Path]:
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    silence_loading()
    bert = BertModel.from_pretrained(folder, attn_implementation="sdpa", add_pooling_layer=False)
    ids, mask = (torch.ones(2, 8, dtype=torch.long) for _ in range(2))  # one would be one input
    texts = torch.export.Dim("texts", min=1, max=4096)
    tokens = torch.export.Dim("tokens", min=1, max=MAX_TOKENS)
    with TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        path = Path(scratch) / "encoder.onnx"
        torch.onnx.export(
            _Embedder(bert).eval(),
            (ids, mask),
            path,
            input_names=["ids", "mask"],
            output_names=["vectors"],
            dynamic_shapes={"ids": {0: texts, 1: tokens}, "mask": {0: texts, 1: tokens}},
            dynamo=True,
            verbose=False,
        )
        yield path
