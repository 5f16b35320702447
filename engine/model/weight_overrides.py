"""Replaces some tensors of an encoder, by name.

Names are those of the fields of EncoderWeights, whatever the family: "layers.3.ffn_in.weight",
"embedding_norm.bias", "positions".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from engine.errors import CheckpointError
from engine.model.int8 import Int8Affine, check_outliers, quantised
from engine.model.linear import dense_weight, pack
from engine.model.weights import Affine, EncoderWeights, LayerWeights, Linear

_PRODUCTS = ("qkv", "attention_out", "ffn_in", "ffn_out")
"""Parts of a layer whose weights are packed on a CPU."""


_Finish = Callable[[str, Affine, Linear], Linear]
"""Makes a layer of its name, its new tensors and the layer it replaces."""


def named_tensors(weights: EncoderWeights) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that may be replaced, unpacked. Word vectors, half of the model, may not."""
    if weights.positions is not None:
        yield "positions", weights.positions
    yield from _of_affine("embedding_norm", weights.embedding_norm)
    for index, layer in enumerate(weights.layers):
        for name, affine in _affines(layer):
            yield from _of_affine(f"layers.{index}.{name}", affine)


def override_weights(weights: EncoderWeights, adapted: Mapping[str, Tensor]) -> EncoderWeights:
    """The encoder with these tensors in place of its own, on the same devices and dtypes."""
    if not adapted:
        return weights
    own = dict(named_tensors(weights))
    _check(own, adapted)
    placed = {name: tensor.to(own[name]) for name, tensor in adapted.items()}
    return _rebuilt(weights, placed, _finished)


def _finished(name: str, made: Affine, own: Linear) -> Linear:
    """The replaced layer in the form of the own one."""
    if not isinstance(own, Int8Affine):
        return pack(made, made.weight.dtype)
    check_outliers(f"{name}.weight", made.weight)
    return quantised(*made, own.smoothing, reduced=own.reduced)


def dense(weights: EncoderWeights, replaced: Mapping[str, Tensor]) -> EncoderWeights:
    """The same for training, with unpacked tensors, since packed ones have no gradients."""
    tensors = dict(named_tensors(weights)) | dict(replaced)
    return _rebuilt(weights, tensors, lambda _name, made, _own: made)


def _rebuilt(
    weights: EncoderWeights, tensors: Mapping[str, Tensor], finish: _Finish
) -> EncoderWeights:
    def linear(name: str, own: Linear) -> Linear:
        named = (f"{name}.weight", f"{name}.bias")
        if not any(one in tensors for one in named):
            return own
        weight, bias = tensors.get(named[0]), tensors.get(named[1], own.bias)
        made = Affine(dense_weight(own) if weight is None else weight, bias)
        return finish(name, made, own) if name.rpartition(".")[2] in _PRODUCTS else made

    def norm(name: str, own: Affine) -> Affine:
        return Affine(
            tensors.get(f"{name}.weight", own.weight), tensors.get(f"{name}.bias", own.bias)
        )

    def layer(index: int, own: LayerWeights) -> LayerWeights:
        parts: dict[str, Any] = {
            name: linear(f"layers.{index}.{name}", part) for name, part in _affines(own)
        }
        return replace(own, **parts)

    return replace(
        weights,
        positions=tensors.get("positions", weights.positions),
        embedding_norm=norm("embedding_norm", weights.embedding_norm),
        layers=tuple(layer(index, own) for index, own in enumerate(weights.layers)),
    )


def _affines(layer: LayerWeights) -> Iterator[tuple[str, Linear]]:
    for field in fields(layer):
        if isinstance(value := getattr(layer, field.name), Affine | Int8Affine):
            yield field.name, value


def _of_affine(name: str, affine: Linear) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.weight", dense_weight(affine)
    if affine.bias is not None:
        yield f"{name}.bias", affine.bias


def _check(own: Mapping[str, Tensor], adapted: Mapping[str, Tensor]) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
    for name, tensor in adapted.items():
        if shapes.get(name) != tuple(tensor.shape):
            raise CheckpointError(
                f"the calibration replaces {name} with a tensor of shape {tuple(tensor.shape)}; "
                f"the model has {shapes.get(name, 'no such tensor')}",
                code="calibration_mismatch",
                param=name,
                limit=str(shapes.get(name)),
                actual=str(tuple(tensor.shape)),
            )
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"the calibration's {name} is not finite", code="invalid_calibration", param=name
            )
