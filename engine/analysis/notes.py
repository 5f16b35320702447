"""What a reader of a diagnosis must know before comparing its values with those of other texts."""

from __future__ import annotations

from collections.abc import Sequence

from engine.analysis.layer_capture import kind_as_read
from engine.checkpoint.block_size import block_of
from engine.diagnostics.temperature import LOGNORMALITY
from engine.model.embedding_model import EmbeddingModel


def notes_on(
    model: EmbeddingModel, layers: Sequence[int], instruments: Sequence[str], num_tokens: int
) -> tuple[str, ...]:
    calibration = model.calibration
    kinds = {kind_as_read(model, layer, num_tokens) for layer in layers}
    if calibration is None or not kinds & {"block_diagonal", "lln_diag"}:
        return ()
    block = block_of(num_tokens, calibration.block_size, calibration.long_block)
    if num_tokens <= block:
        return (
            f"The text of {num_tokens} tokens fits in one block of {block}: what was measured is "
            "softmax attention over the whole text, and LLN has no share in it.",
        )
    if "lln_diag" in kinds and LOGNORMALITY.name in instruments:
        return (
            f"lognormality: beyond its block of {block} tokens and the sinks, a row has LLN's "
            "weights alone, which are nearly even, so log P spreads less than in a text of one "
            "block, which is softmax. Do not compare the two.",
        )
    return ()
