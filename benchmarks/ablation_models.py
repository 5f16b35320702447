"""A model with one part removed or replaced and nothing trained again, to show what it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

from engine.checkpoint.calibration import Calibration
from engine.model.attention import SlidingWindowAttention
from engine.model.embedding_model import EmbeddingModel
from engine.model.encoder import Encoder
from engine.types import PositionScheme

AS_SERVED = "as served"


def ablations_of(model: EmbeddingModel) -> Mapping[str, EmbeddingModel]:
    """Models by what was changed; the first is the LLN+Diag model itself."""
    whole = model.calibration
    assert whole is not None, "an LLN+Diag model has a calibration"
    found = {
        AS_SERVED: model,
        "Diag alone": model.with_attention("block_diagonal"),
        "LLN alone": model.with_attention("lln"),
        "softmax over a sliding window": _in_sliding_windows(model, whole.block_size),
    }
    for name, calibration in _calibrations(whole, model.info.position_table).items():
        found[name] = model.with_calibration(calibration)
    return found


def _calibrations(whole: Calibration, table: int) -> dict[str, Calibration]:
    """Calibrations without one of the parts that there are.

    `table` is the number of positions that the model learned, 0 if it learned none.
    """
    found = {}
    if whole.query_map is not None or whole.key_map is not None:
        found["without maps"] = replace(whole, query_map=None, key_map=None)
    if whole.gate is not None:
        found["without gate"] = replace(whole, gate=None)
    if any(whole.num_sinks):
        found["without sinks"] = replace(whole, num_sinks=(0, 0))
    served_long = whole.block_size if whole.long_block is None else whole.long_block.size
    sizes = [size for size in (whole.block_size, whole.block_size // 2) if size % 16 == 0]
    for size in sizes:
        if not whole.block_size == size == served_long:
            found[f"blocks of {size}"] = replace(whole, block_size=size, long_block=None)
    # With blocks as long as the table, positions that restart in each block are the tiled ones.
    schemes = get_args(PositionScheme) if table != whole.block_size else ("tile", "interpolate")
    for positions in schemes if table else ():
        if positions != whole.positions:
            found[f"positions: {positions}"] = replace(whole, positions=positions)
    return found


def _in_sliding_windows(model: EmbeddingModel, width: int) -> EmbeddingModel:
    """Every token sees as many others as a block has, half of them on either side."""
    weights = model.encoder.weights
    attention = [SlidingWindowAttention(width // 2) for _ in weights.layers]
    return replace(model, encoder=Encoder(weights, attention))
