"""The contenders, each loaded once, on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.rows import Run
from benchmarks.texts import RealText
from engine.checkpoint.registry import DEFAULT_MODEL
from engine.config import EngineConfig
from engine.engine import Engine
from engine.model.embedding_model import EmbeddingModel, load_models

PUBLISHED_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
SOFTMAX = "LLN softmax"
LLN_DIAG = "LLN+Diag"
SENTENCE_TRANSFORMERS = "sentence-transformers"
ONNX_RUNTIME = "ONNX Runtime"
INT8_SEED = 8
"""Draws texts that rivals are quantised with, others than those that are measured."""

Embed: TypeAlias = Callable[[Sequence[str]], NDArray[np.float32]]


@dataclass(frozen=True)
class Workbench:
    """Engines over the published MiniLM weights, on the CPU in float32 unless stated."""

    threads: int
    device: str = "cpu"
    """A GPU's engines work in bfloat16."""

    @property
    def softmax(self) -> Engine:
        """Our engine with the published softmax model."""
        return self._engines[PUBLISHED_MODEL]

    @property
    def lln_diag(self) -> Engine:
        """Our engine with the model served as "default"."""
        return self._engines[DEFAULT_MODEL]

    def lln_diag_in(self, dtype: str) -> Engine:
        """The same with products in another number format."""
        return Engine.load(config=EngineConfig(device="cpu", dtype=dtype, num_threads=self.threads))

    @cached_property
    def text(self) -> RealText:
        return RealText(self.softmax.model.tokenizer)

    @cached_property
    def everyone(self) -> Mapping[str, Embed]:
        return {
            SOFTMAX: self.softmax.embed,
            LLN_DIAG: self.lln_diag.embed,
            SENTENCE_TRANSFORMERS: self.sentence_transformers,
            ONNX_RUNTIME: self._onnx_runtime,
        }

    @cached_property
    def sentence_transformers(self) -> Embed:
        from benchmarks.rivals.sentence_transformers_rival import SentenceTransformersRival

        folder = self._published.checkpoint.folder
        return SentenceTransformersRival(folder, self.lln_diag.model.encoder.device).embed

    def on(self, texts: Sequence[str]) -> dict[str, Run]:
        """Every contender's call that embeds these texts."""
        return {name: partial(embed, texts) for name, embed in self.everyone.items()}

    @cached_property
    def _onnx_runtime(self) -> Embed:
        from benchmarks.rivals.onnx_rival import OnnxRival

        return OnnxRival(self._published.checkpoint.folder, self.threads).embed

    @cached_property
    def int8_rivals(self) -> tuple[Embed, Embed]:
        """ONNX Runtime's and OpenVINO's."""
        from benchmarks.rivals.onnx_rival import OnnxRival
        from benchmarks.rivals.openvino_rival import OpenVinoRival

        folder = self._published.checkpoint.folder
        texts = self.text.passages([32] * 50 + [128] * 50, seed=INT8_SEED)
        return (
            OnnxRival(folder, self.threads, int8=True).embed,
            OpenVinoRival(folder, self.threads, texts_for_int8=texts).embed,
        )

    @property
    def _published(self) -> EmbeddingModel:
        return self.softmax.model

    @cached_property
    def _engines(self) -> dict[str, Engine]:
        config = EngineConfig(device=self.device, num_threads=self.threads)
        models = load_models([DEFAULT_MODEL, PUBLISHED_MODEL], config=config)
        return {model.name: Engine(model, config=config) for model in models}
