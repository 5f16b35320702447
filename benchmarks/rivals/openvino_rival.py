"""OpenVINO over the same export: float32, or int8 as its own tool (NNCF) quantises encoders.

That is post-training quantisation for transformers: fixed scales from a hundred texts, smoothed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

from benchmarks.rivals.onnx_rival import exported
from benchmarks.rivals.padded import Ids, PaddedBatches
from kernels.attention.processor import multiplies_bfloat16_tiles


class OpenVinoRival(PaddedBatches):
    def __init__(
        self, folder: Path, threads: int, *, texts_for_int8: Sequence[str] | None = None
    ) -> None:
        """With texts it is quantised to int8 by what it computes for them."""
        core = openvino.Core()
        with exported(folder) as path:
            model = core.read_model(str(path))
            super().__init__(folder, self._infer)
            if texts_for_int8 is not None:
                model = self._quantised(model, texts_for_int8)
            narrow = texts_for_int8 is not None and multiplies_bfloat16_tiles()
            self._request = core.compile_model(
                model, "CPU", _settings(threads, "bf16" if narrow else "f32")
            ).create_infer_request()

    def _infer(self, ids: Ids, mask: Ids) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = self._request.infer({"ids": ids, "mask": mask})[0]
        return vectors.copy()  # it is overwritten by the next call

    def _quantised(self, model: Any, texts: Sequence[str]) -> Any:
        import nncf

        logging.getLogger("nncf").setLevel(logging.ERROR)

        def inputs(text: str) -> dict[str, Ids]:
            return dict(zip(("ids", "mask"), self.ids_and_mask([text]), strict=True))

        return nncf.quantize(
            model,
            nncf.Dataset(texts, inputs),
            model_type=nncf.ModelType.TRANSFORMER,
            preset=nncf.QuantizationPreset.MIXED,
        )


def _settings(threads: int, precision: str) -> dict[str, Any]:
    """`precision` is that of what is not quantised: on CPUs with tiles, bfloat16 is faster."""
    return {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
    }
