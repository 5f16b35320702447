"""Quantises an encoder to int8 when it is loaded.

A few texts are read in float32 first, to learn which input channels have outliers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from math import inf, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from engine.errors import CheckpointError
from engine.model.attention import LayerAttention, SlidingWindowAttention, SoftmaxAttention
from engine.model.encoder import Encoder
from engine.model.int8 import MOST, Int8Affine, quantised, smoothing_of
from engine.model.weights import Affine, EncoderWeights, LayerWeights, Linear

PROBE = (
    "The harbour was closed for three days while divers searched the wreck.",
    "How do I reset a forgotten password?",
    "def mean(values): return sum(values) / len(values)",
    "On 14 March 1879, in Ulm; population 126,790 (2020), 478 m above sea level.",
    "WARNING: disk /dev/sda1 is 97% full - 1.2 GB of 50 GB left.",
    "Dear Ms. O'Neill, thank you for your letter. We'll refund $39.99 within 5-7 days!",
    "cat",
    "best running shoes for flat feet",
    "Mitochondria produce most of a cell's ATP; their membranes fold into cristae, and each "
    "carries a small circular genome inherited, with rare exceptions, from the mother.",
    "Section 4.2 The tenant shall give notice in writing, at least thirty (30) days before the "
    "end of the term, unless both parties agree otherwise.",
    "The quick brown fox jumps over the lazy dog. The dog sleeps. Nobody knows why.",
    "Le train pour Genève part à 18 h 05. Zürich bleibt kalt. ¿Dónde está la estación?",
    "SELECT name, COUNT(*) FROM orders WHERE paid = TRUE GROUP BY name HAVING COUNT(*) > 10;",
    "He said nothing. She waited, then laughed: 'You never could keep a secret, could you?'",
    "Preheat the oven to 180 C. Whisk two eggs with 100 g of sugar until pale, fold in the flour, "
    "and bake for twenty-five minutes.",
    "https://example.org/docs/index.html#install, e-mail: info@example.org",
    "The committee voted 7-2 to raise interest rates, citing inflation of 3.4 per cent, a tight "
    "labour market and the risk that expectations would become unanchored.",
    "a b c d e f g 1 2 3 ... !!! ??? --- *** ((( ))) [[ ]] {{ }}",
    "Snow fell on the pass all night, and by morning the road to the village was gone.",
    "What is the capital of Australia, and when was it founded?",
)
"""Texts of several kinds. Vectors in int8 depend on them, in their last bits."""

_SMOOTHED = ("qkv", "ffn_in")
"""The products whose inputs are normalised states, which have outliers."""
_PRODUCTS = (*_SMOOTHED, "attention_out", "ffn_out")

_LARGEST = torch.finfo(torch.float32).max / 8
"""The largest product, with room for the sums on the way to it."""


def quantised_weights(
    weights: EncoderWeights, texts: Sequence[NDArray[np.int32]], *, reduced: bool = False
) -> EncoderWeights:
    """The encoder with its linear layers in int8, for CPUs without VNNI in `reduced` range."""
    largest = _largest_inputs(weights, texts)
    return replace(
        weights, layers=tuple(_quantised_layer(layer, largest, reduced) for layer in weights.layers)
    )


def check_overflow(weights: EncoderWeights) -> None:
    """Raises CheckpointError if a feed-forward product in int8 could overflow.

    Where products go to -inf, the activation makes NaN of them, which the next product would hide.
    A norm stands before the product, so what can come of it is known. Before norms, as in
    ModernBERT, nothing is hidden.
    """
    if weights.arrangement != "post_norm":
        return
    for number, layer in enumerate(weights.layers):
        if not isinstance(layer.ffn_in, Int8Affine) or layer.attention_norm is None:
            continue
        largest = _largest_output(layer.ffn_in, layer.attention_norm, weights.width)
        if not largest < _LARGEST:
            raise CheckpointError(
                f"layer {number} cannot be used in int8: its feed-forward products may reach "
                f"{largest:.3g}, at most {_LARGEST:.3g} is possible; use float32",
                code="int8_overflow",
                param=f"layers.{number}.ffn_in",
                limit=_LARGEST,
                actual=largest,
            )


def _largest_output(layer: Int8Affine, norm: Affine, width: int) -> float:
    """What the layer can give at most, in size, for any normalised row."""
    reach = norm.weight.abs().double() * sqrt(width)
    if norm.bias is not None:
        reach += norm.bias.abs()
    if layer.smoothing is not None:
        reach *= layer.smoothing
    found = layer.scale.double() * MOST * reach.sum()
    if layer.bias is not None:
        found += layer.bias.abs()
    return float(found.max().nan_to_num(nan=inf))


def _quantised_layer(
    layer: LayerWeights, largest: dict[int, Tensor], reduced: bool
) -> LayerWeights:
    def made(name: str, own: Linear) -> Linear:
        assert not isinstance(own, Int8Affine), "it is quantised once"
        inputs = largest.get(id(own.weight)) if name in _SMOOTHED else None
        smoothing = None if inputs is None else smoothing_of(own.weight, inputs)
        return quantised(own.weight, own.bias, smoothing, reduced=reduced)

    parts: dict[str, Any] = {name: made(name, getattr(layer, name)) for name in _PRODUCTS}
    return replace(layer, **parts)


def _largest_inputs(
    weights: EncoderWeights, texts: Sequence[NDArray[np.int32]]
) -> dict[int, Tensor]:
    """For each weight that multiplies, by its identity, the largest input of each channel."""
    watch = _Watch()
    bounds = [0, *accumulate(len(ids) for ids in texts)]
    ids = torch.from_numpy(np.concatenate(texts).astype(np.int64))
    with torch.no_grad(), watch:
        Encoder(weights, [_published_attention(layer) for layer in weights.layers])(ids, bounds)
    return watch.largest


def _published_attention(layer: LayerWeights) -> LayerAttention:
    reach = layer.half_window
    return SoftmaxAttention() if reach is None else SlidingWindowAttention(reach)


class _Watch(TorchFunctionMode):
    """Records the largest input of each channel of every linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.largest: dict[int, Tensor] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is F.linear:
            x, weight = args[:2]
            found = x.abs().amax(0)
            known = self.largest.get(id(weight), found)
            self.largest[id(weight)] = torch.maximum(known, found)
        return func(*args, **(kwargs or {}))
