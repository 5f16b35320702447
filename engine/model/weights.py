"""An encoder's tensors in one form for all families, and the reader that checks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from engine.errors import CheckpointError
from engine.model.int8 import Int8Affine, check_outliers
from kernels.attention.processor import multiplies_bfloat16_tiles

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]

Arrangement = Literal["post_norm", "pre_norm"]
"""Whether a layer's norms come after its two parts, as in BERT, or before them."""

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Activations by their names in Hugging Face configurations."""


class Affine(NamedTuple):
    """A linear layer, or the scale and shift of a norm."""

    weight: Tensor
    bias: Tensor | None

    @property
    def num_weights(self) -> int:
        return self.weight.numel()


Linear: TypeAlias = Affine | Int8Affine


class Rotary(NamedTuple):
    """Positions as rotations of pairs of channels; the first pairs rotate fastest."""

    base: float


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    qkv: Linear  # [3 W, W]: queries, keys and values in one product
    attention_out: Linear  # [W, W]
    attention_norm: Affine | None  # [W], after attention or, pre-norm, before it
    ffn_in: Linear  # [F, W], or [2 F, W] with a gate
    ffn_out: Linear  # [W, F]
    ffn_norm: Affine  # [W], after the feed-forward part or, pre-norm, before it
    rotary: Rotary | None = None  # rotation of queries and keys by their positions
    half_window: int | None = None  # reach of a local layer; None for global layers
    closing_norm: Affine | None = None  # [W] after the last layer of a pre-norm encoder


@dataclass(frozen=True, kw_only=True)
class EncoderWeights:
    words: Tensor  # [V, W], in bfloat16 beside products in int8
    positions: Tensor | None
    """[P, W] usable rows only, from the first token's, with token type 0 added in. None if the
    layers have rotary positions."""

    trained_positions: int
    """Positions seen in training: the rows of the table, if there is one."""

    embedding_norm: Affine  # [W]
    layers: tuple[LayerWeights, ...]
    num_heads: int
    activation: Activation
    norm_eps: float
    arrangement: Arrangement = "post_norm"

    @property
    def width(self) -> int:
        return self.words.shape[1]

    @property
    def head_dim(self) -> int:
        return self.width // self.num_heads

    @property
    def is_int8(self) -> bool:
        return isinstance(self.layers[0].qkv, Int8Affine)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of all that is neither multiplied nor a word vector."""
        return self.embedding_norm.weight.dtype

    @property
    def state_dtype(self) -> torch.dtype:
        """The dtype of the states between layers.

        On CPUs that multiply tiles of bfloat16, passes over states in float32 take longer than the
        products. Only states that are normalised after each addition keep their precision so.
        """
        in_tiles = self.attention_dtype is torch.bfloat16 and multiplies_bfloat16_tiles()
        if in_tiles and not self.is_int8 and self.arrangement == "post_norm":
            return torch.bfloat16
        return self.dtype

    @property
    def attention_dtype(self) -> torch.dtype:
        """The dtype of queries, keys and values."""
        if not self.is_int8:
            return self.layers[0].qkv.weight.dtype
        # int8 rounds more than bfloat16 does, so this loses nothing that it has.
        return torch.bfloat16 if multiplies_bfloat16_tiles() else torch.float32


class TensorSource(Protocol):
    """Provides tensors by their Hugging Face names."""

    def tensor(self, name: str) -> Tensor: ...

    def path(self, name: str) -> Path: ...

    def __contains__(self, name: str) -> bool: ...


class TensorReader:
    """Reads tensors by name, checks their shapes and values, and moves them to one device."""

    def __init__(
        self,
        source: TensorSource,
        *,
        device: torch.device,
        dtype: torch.dtype,
        product_dtype: torch.dtype | None = None,
    ) -> None:
        """`product_dtype` is the dtype of linear layers' weights; None is `dtype`."""
        self._source = source
        self.product_dtype = product_dtype or dtype
        self._place: Callable[[Tensor], Tensor] = lambda tensor: tensor.to(device, dtype)

    def has(self, name: str) -> bool:
        return name in self._source

    def tensor(self, name: str, *shape: int | None) -> Tensor:
        """A tensor of this shape; None stands for any size."""
        tensor = self._source.tensor(name)
        expected = tuple(shape)
        fits = tensor.dim() == len(expected) and all(
            size is None or size == actual
            for size, actual in zip(expected, tensor.shape, strict=True)
        )
        if not fits:
            raise self._wrong(name, "shape", tuple(tensor.shape), expected)
        if not tensor.is_floating_point():
            raise self._wrong(name, "dtype", tensor.dtype, "floating point")
        placed = self._place(tensor)
        if not _is_finite(placed):
            raise self._wrong(name, "values", "not finite", "finite values")
        return placed

    def words(self, name: str, num_words: int, width: int) -> Tensor:
        """Word vectors, beside products in int8 in half the bytes: those round far more."""
        words = self.tensor(name, num_words, width)
        return words.bfloat16() if self.product_dtype is torch.int8 else words

    def first_row(self, name: str, width: int) -> Tensor:
        """The first row of a table, which must have one."""
        table = self.tensor(name, None, width)
        if not len(table):
            raise self._wrong(name, "shape", tuple(table.shape), "at least one row")
        return table[0]

    def linear(self, name: str, num_out: int, num_in: int, *, bias: bool = True) -> Affine:
        weight = self.tensor(f"{name}.weight", num_out, num_in)
        if self.product_dtype is torch.int8:
            check_outliers(f"{name}.weight", weight)  # `pack` quantises it
        else:
            weight = weight.to(self.product_dtype)
        if not bias:
            return Affine(weight, None)
        # oneDNN adds states to a product only if all have one dtype.
        return Affine(weight, self.tensor(f"{name}.bias", num_out).to(weight.dtype))

    def stacked(self, names: tuple[str, ...], num_out: int, num_in: int) -> Affine:
        """Several linear layers with the same input, as one."""
        parts = [self.linear(name, num_out, num_in) for name in names]
        biases = [part.bias for part in parts if part.bias is not None]
        return Affine(torch.cat([part.weight for part in parts]), torch.cat(biases))

    def norm(self, name: str, width: int, *, bias: bool = True) -> Affine:
        weight = self.tensor(f"{name}.weight", width)
        return Affine(weight, self.tensor(f"{name}.bias", width) if bias else None)

    def _wrong(self, name: str, what: str, found: object, expected: object) -> CheckpointError:
        return CheckpointError(
            f"tensor {name} of {self._source.path(name)} has {what} {found}, expected {expected}",
            code=f"wrong_tensor_{what}",
            param=name,
            limit=str(expected),
            actual=str(found),
        )


def _is_finite(tensor: Tensor) -> bool:
    """Checks the extremes, in one pass; torch.isfinite would take longer than loading."""
    return not tensor.numel() or all(isfinite(end) for end in tensor.aminmax())
