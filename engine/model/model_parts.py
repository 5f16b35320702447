"""What is read from model folders: weights and tokenizers, once for all models made from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from engine.checkpoint.folder import Checkpoint, read_checkpoint
from engine.checkpoint.locate import CheckpointLocation
from engine.errors import CheckpointError
from engine.model.encoder_config import EncoderConfig
from engine.model.families import read_encoder
from engine.model.int8_encoder import PROBE, quantised_weights
from engine.model.weights import EncoderWeights, TensorReader
from engine.platform.device import REDUCED, Placement
from engine.text.tokenizer import TextTokenizer


@dataclass(frozen=True)
class ModelParts:
    """What is read from a folder once and shared by all kinds of attention."""

    checkpoint: Checkpoint
    weights: EncoderWeights
    tokenizer: TextTokenizer
    dtype: str  # of matrix products


class SharedParts:
    """Reads each folder once, so models made from one file share its tensors."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._read: dict[tuple[Path, str | None], Checkpoint] = {}
        self._of: dict[tuple[Path, str], ModelParts] = {}

    def checkpoint(self, location: CheckpointLocation) -> Checkpoint:
        key = (location.folder, location.expected_sha256)
        if key not in self._read:
            self._read[key] = read_checkpoint(
                location.folder, expected_sha256=location.expected_sha256
            )
        return self._read[key]

    def of(self, checkpoint: Checkpoint) -> ModelParts:
        key = (checkpoint.folder, checkpoint.sha256)
        if key not in self._of:
            self._of[key] = _read_parts(checkpoint, self._placement)
        return self._of[key]


def _read_parts(checkpoint: Checkpoint, placement: Placement) -> ModelParts:
    reader = TensorReader(
        checkpoint.weights,
        device=placement.device,
        dtype=placement.tensor_dtype,
        product_dtype=placement.dtype,
    )
    config = EncoderConfig(checkpoint.transformer_folder / "config.json", checkpoint.config)
    weights = read_encoder(checkpoint.family, config, reader)
    tokenizer = TextTokenizer.from_folder(
        checkpoint.transformer_folder, lowercase=checkpoint.lowercase
    )
    if tokenizer.vocab_size > len(weights.words):
        raise CheckpointError(
            f"the tokenizer has {tokenizer.vocab_size} ids, the model only {len(weights.words)}",
            code="invalid_checkpoint",
            limit=len(weights.words),
            actual=tokenizer.vocab_size,
        )
    if placement.dtype is torch.int8:
        texts = [text.ids for text in tokenizer.encode_batch(PROBE)]
        weights = quantised_weights(weights, texts, reduced=placement.precision == REDUCED)
    return ModelParts(checkpoint, weights, tokenizer, placement.precision)
