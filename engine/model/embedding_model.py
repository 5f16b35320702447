"""A loaded model, made of what its folder holds, an attention and a calibration."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from engine.checkpoint.calibration import Calibration, find_calibration, has_own_calibration
from engine.checkpoint.folder import Checkpoint
from engine.checkpoint.locate import locate
from engine.checkpoint.registry import DEFAULT_MODEL, is_converted
from engine.config import EngineConfig
from engine.model.attention import CALIBRATED, HAS_LLN, LayerAttention
from engine.model.encoder import Encoder
from engine.model.int8_encoder import check_overflow
from engine.model.layer_kinds import kinds_by_layer, layer_attention
from engine.model.model_parts import ModelParts, SharedParts
from engine.model.pooling import PooledSpan
from engine.model.quantized import usual_range
from engine.model.weight_overrides import override_weights
from engine.model.weights import EncoderWeights
from engine.platform.device import choose_placement
from engine.text.tokenizer import TextTokenizer
from engine.types import Attention, ModelInfo
from kernels.attention.processor import multiplies_bfloat16_tiles

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EmbeddingModel:
    info: ModelInfo
    parts: ModelParts
    calibration: Calibration | None
    encoder: Encoder
    config: EngineConfig

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def checkpoint(self) -> Checkpoint:
        return self.parts.checkpoint

    @property
    def tokenizer(self) -> TextTokenizer:
        return self.parts.tokenizer

    def pools(
        self, spans: Iterable[tuple[int, int]], num_tokens: int, *, at: int = 0
    ) -> list[PooledSpan]:
        """Spans of a text that begins at row `at`. The slope applies to the whole text only."""
        slope = self.pooling_slope_of(num_tokens)
        whole = (0, num_tokens)
        return [
            PooledSpan(at + start, at + end, slope if (start, end) == whole else 0.0)
            for start, end in spans
        ]

    def pooling_slope_of(self, num_tokens: int) -> float:
        """The slope for a whole text of this length; 0 without LLN, which it compensates for."""
        has_lln = any(layer.kind in HAS_LLN for layer in self.encoder.attention)
        if self.calibration is None or not has_lln:
            return 0.0
        return self.calibration.pooling_slope_of(num_tokens)

    def with_attention(self, kinds: str | Sequence[str]) -> EmbeddingModel:
        """The same weights with another attention."""
        return _assemble(
            self.info.name,
            self.parts,
            self.calibration,
            kinds=kinds,
            source=self.info.source,
            config=self.config,
        )

    def with_calibration(self, calibration: Calibration) -> EmbeddingModel:
        """The same weights as LLN+Diag with this calibration."""
        return replace(self, calibration=calibration).with_attention("lln_diag")


def load_model(
    name: str = DEFAULT_MODEL,
    *,
    attention: str | Sequence[str] | None = None,
    config: EngineConfig = EngineConfig(),  # noqa: B008 - frozen
) -> EmbeddingModel:
    """Loads a model by folder or name.

    If `attention` is None, "default", "documents" and folders with a calibration of their own are
    loaded as LLN+Diag, and all others with softmax, as published.
    """
    return load_models([name], attention=attention, config=config)[0]


def load_models(
    names: Sequence[str],
    *,
    attention: str | Sequence[str] | None = None,
    config: EngineConfig = EngineConfig(),  # noqa: B008 - frozen
) -> list[EmbeddingModel]:
    """Loads several models. Those from the same weights file share its tensors."""
    placement = choose_placement(config.device, config.dtype, config.fallback_dtype)
    torch.set_num_threads(config.compute_threads)
    logger.info("matrix products in %s on %s", placement.precision, placement.device)
    if config.dtype == "auto" and placement.device.type == "cpu" and multiplies_bfloat16_tiles():
        logger.info("this CPU is several times faster with LLN_ENGINE__DTYPE=bfloat16")
    shared = SharedParts(placement)
    return [
        _load_one(name, shared, attention=attention, config=config) for name in dict.fromkeys(names)
    ]


def _load_one(
    name: str,
    shared: SharedParts,
    *,
    attention: str | Sequence[str] | None,
    config: EngineConfig,
) -> EmbeddingModel:
    location = locate(name)
    checkpoint = shared.checkpoint(location)
    return _assemble(
        name,
        shared.of(checkpoint),
        find_calibration(checkpoint.folder, checkpoint.sha256, name)
        if _may_need_calibration(attention)
        else None,
        kinds=attention or _default_attention(name, checkpoint.folder),
        source=location.source,
        config=config,
    )


def _may_need_calibration(attention: str | Sequence[str] | None) -> bool:
    """Softmax needs none. So a folder whose calibration is damaged, or belongs to other weights,
    can still be loaded and calibrated again."""
    kinds = (attention,) if isinstance(attention, str) else attention
    return kinds is None or any(kind != "softmax" for kind in kinds)


def _default_attention(name: str, folder: Path) -> Attention:
    return "lln_diag" if is_converted(name) or has_own_calibration(folder) else "softmax"


def _assemble(
    name: str,
    parts: ModelParts,
    calibration: Calibration | None,
    *,
    kinds: str | Sequence[str],
    source: str,
    config: EngineConfig,
) -> EmbeddingModel:
    checkpoint, weights = parts.checkpoint, parts.weights
    per_layer = kinds_by_layer(kinds, weights)
    attention = layer_attention(per_layer, calibration, checkpoint, weights)
    uses_calibration = any(kind in CALIBRATED for kind in per_layer)
    if calibration is not None and uses_calibration:
        # Only LLN+Diag uses the adapted weights; softmax keeps the published ones.
        weights = override_weights(weights, calibration.adapted)
    check_overflow(weights)
    quadratic = "softmax" in per_layer
    info = ModelInfo(
        name=name,
        family=checkpoint.family,
        attention=per_layer,
        dim=weights.width,
        num_layers=len(weights.layers),
        num_heads=weights.num_heads,
        max_tokens=config.max_softmax_text_tokens if quadratic else config.max_text_tokens,
        position_table=weights.trained_positions,
        pooling=checkpoint.pooling,
        prompts=checkpoint.prompts,
        revision=checkpoint.sha256,
        calibration=calibration.sha256 if calibration and uses_calibration else None,
        source=source,
        device=str(weights.words.device),
        dtype=parts.dtype,
        int8_range=usual_range(weights.width),
        chunk_context=calibration.chunk_context if calibration and uses_calibration else "balanced",
    )
    return EmbeddingModel(
        info=info,
        parts=parts,
        calibration=calibration,
        encoder=build_encoder(weights, attention, calibration if uses_calibration else None),
        config=config,
    )


def build_encoder(
    weights: EncoderWeights, attention: Sequence[LayerAttention], calibration: Calibration | None
) -> Encoder:
    if calibration is None:
        return Encoder(weights, attention)
    return Encoder(
        weights,
        attention,
        positions=calibration.positions,
        block_size=calibration.block_size,
        long_block=calibration.long_block,
    )
