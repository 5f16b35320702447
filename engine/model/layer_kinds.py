"""The attention of each layer: the kinds that are asked for, with their parameters."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.checkpoint.calibration import Calibration
from engine.checkpoint.folder import Checkpoint
from engine.errors import CheckpointError, InvalidInput, unknown_name
from engine.model.attention import (
    CALIBRATED,
    KINDS,
    LayerAttention,
    SlidingWindowAttention,
    SoftmaxAttention,
)
from engine.model.lln_parameters import LLNParameters
from engine.model.weights import EncoderWeights


def kinds_by_layer(kinds: str | Sequence[str], weights: EncoderWeights) -> tuple[str, ...]:
    """The requested kinds, except in local layers, which keep their sliding window."""
    requested = _requested_kinds(kinds, len(weights.layers))
    return tuple(
        kind if layer.half_window is None else "sliding_window"
        for kind, layer in zip(requested, weights.layers, strict=True)
    )


def _requested_kinds(kinds: str | Sequence[str], num_layers: int) -> tuple[str, ...]:
    per_layer = (kinds,) * num_layers if isinstance(kinds, str) else tuple(kinds)
    if len(per_layer) != num_layers:
        raise InvalidInput(
            f"attention has {len(per_layer)} kinds, the model has {num_layers} layers",
            param="attention",
            limit=num_layers,
            actual=len(per_layer),
        )
    for kind in per_layer:
        if kind not in KINDS:
            raise unknown_name("attention", kind, KINDS, param="attention")
    return per_layer


def layer_attention(
    per_layer: Sequence[str],
    calibration: Calibration | None,
    checkpoint: Checkpoint,
    weights: EncoderWeights,
) -> list[LayerAttention]:
    if calibration is not None:
        _check_fits(calibration, weights)
    layers: list[LayerAttention] = []
    for index, kind in enumerate(per_layer):
        half_window = weights.layers[index].half_window
        if half_window is not None:
            layers.append(SlidingWindowAttention(half_window))
        elif kind == "softmax":
            layers.append(SoftmaxAttention())
        elif calibration is None:
            raise CheckpointError(
                f"{checkpoint.folder} has no LLN calibration, which {kind} attention needs; "
                f"create one with: lln adapt {checkpoint.folder} --out FOLDER",
                code="not_calibrated",
                param="attention",
                actual=kind,
            )
        else:
            layers.append(CALIBRATED[kind](_parameters(calibration, index, weights)))
    return layers


def _check_fits(calibration: Calibration, weights: EncoderWeights) -> None:
    expected = (len(weights.layers), weights.num_heads, weights.head_dim)
    if tuple(calibration.key_shift.shape) != expected:
        raise CheckpointError(
            f"the calibration is for {tuple(calibration.key_shift.shape)} (layers, heads, head "
            f"size), the model has {expected}",
            code="calibration_mismatch",
            limit=str(expected),
            actual=str(tuple(calibration.key_shift.shape)),
        )


def _parameters(calibration: Calibration, layer: int, weights: EncoderWeights) -> LLNParameters:
    return LLNParameters(
        alpha=calibration.alpha[layer],
        beta=calibration.beta[layer],
        mix=calibration.mix[layer],
        key_shift=calibration.key_shift[layer],
        query_map=_of_layer(calibration.query_map, layer),
        key_map=_of_layer(calibration.key_map, layer),
        gate=_of_layer(calibration.gate, layer),
        block_size=calibration.block_size,
        num_sinks=calibration.num_sinks,
        long_block=calibration.long_block,
    ).on(weights.words.device)


def _of_layer(stacked: Tensor | None, layer: int) -> Tensor | None:
    return None if stacked is None else stacked[layer]
