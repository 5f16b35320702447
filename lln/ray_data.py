"""LLN in a Ray Data pipeline: a column of vectors beside a column of texts.

    import ray
    from lln.ray_data import EmbedTexts

    rows = ray.data.read_parquet("corpus.parquet")
    rows = rows.map_batches(EmbedTexts, batch_size=256, num_cpus=1,
                            compute=ray.data.ActorPoolStrategy(size=2))
    rows.write_parquet("vectors")

A text that is too long ends the pipeline, unless `truncate` says otherwise. `lln embed --ray` puts
such rows aside, and goes on after a kill.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from engine import Engine, EngineConfig
from engine.platform.process import prepare_process
from engine.types import EmbedOptions

Batch = dict[str, Any]


class EmbedTexts:
    """An actor of Ray Data. It loads the model once, and adds a column to each batch."""

    def __init__(
        self,
        model: str = "default",
        *,
        text: str = "text",
        into: str = "embedding",
        dimensions: int | None = None,
        truncate: Literal["error", "start", "end"] = "error",
        num_threads: int = 1,
    ) -> None:
        prepare_process()
        self._engine = Engine.load(model, config=EngineConfig(num_threads=num_threads))
        self._options = EmbedOptions(dimensions=dimensions, truncate=truncate)
        self._text, self._into = text, into

    def __call__(self, batch: Batch) -> Batch:
        texts = np.asarray(batch[self._text]).tolist()
        return {**batch, self._into: self._engine.embed(texts, options=self._options)}
