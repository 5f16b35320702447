"""Vectors in fewer bytes: what the codes stand for, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from engine.errors import InvalidInput
from engine.model.quantized import (
    check_output_dtype,
    quantize,
    range_for,
    range_of,
    usual_range,
)
from engine.types import EmbedOptions, OutputDtype, Vector
from tests.model_info import MODEL


def unit_rows(count: int, dim: int = 384) -> Vector:
    rows = np.random.default_rng(3).standard_normal((count, dim)).astype(np.float32)
    unit: Vector = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def test_int8_keeps_products_up_to_one_factor() -> None:
    rows = unit_rows(20)
    codes = quantize(rows, "int8", MODEL)
    scale = range_of(MODEL, 384) / 127

    assert codes.dtype == np.int8
    wide = codes.astype(np.int32)
    assert wide @ wide.T * scale**2 == pytest.approx(rows @ rows.T, abs=0.01)


def test_uint8_is_int8_with_128_added() -> None:
    rows = unit_rows(5)
    signed, unsigned = quantize(rows, "int8", MODEL), quantize(rows, "uint8", MODEL)
    assert unsigned.dtype == np.uint8
    assert (unsigned.astype(int) - 128 == signed).all()


def test_numbers_beyond_the_range_are_clipped() -> None:
    vector = np.array([1.0, -1.0, 0.0, 0.0], np.float32)
    model = replace(MODEL, dim=4, int8_range=0.5)
    assert quantize(vector, "int8", model).tolist() == [127, -127, 0, 0]
    assert quantize(vector, "uint8", model).tolist() == [255, 1, 128, 128]


def test_bits_are_those_of_sentence_transformers() -> None:
    quantization = pytest.importorskip("sentence_transformers.util.quantization")
    rows = unit_rows(7, 64)
    for dtype in ("binary", "ubinary"):
        theirs = quantization.quantize_embeddings(rows, precision=dtype)
        mine = quantize(rows, dtype, MODEL)
        assert mine.dtype == theirs.dtype
        assert (mine == theirs).all()


def test_float16_and_float() -> None:
    rows = unit_rows(2)
    assert quantize(rows, "float", MODEL) is rows
    assert quantize(rows, "float16", MODEL) == pytest.approx(rows, abs=1e-3)


def test_a_range_grows_with_a_dimension_that_stands_out() -> None:
    usual = unit_rows(1)[0]
    odd = usual.copy()
    odd[7] = 0.9
    odd /= np.linalg.norm(odd)

    assert range_for(usual) == usual_range(384)
    assert odd[7] < range_for(odd) <= 1


def test_the_range_of_fewer_dimensions_is_wider() -> None:
    assert range_of(MODEL, 96) == pytest.approx(2 * MODEL.int8_range)
    assert range_of(MODEL, 1) == 1.0


@pytest.mark.parametrize("dtype", get_args(OutputDtype))
def test_every_dtype_is_allowed_for_usual_vectors(dtype: OutputDtype) -> None:
    check_output_dtype(dtype, EmbedOptions(), MODEL)


@pytest.mark.parametrize(
    ("dtype", "options", "code"),
    [
        ("int8", EmbedOptions(normalize=False), "dtype_needs_normalized"),
        ("uint8", EmbedOptions(normalize=False), "dtype_needs_normalized"),
        ("binary", EmbedOptions(dimensions=100), "dtype_needs_whole_bytes"),
        ("ubinary", EmbedOptions(dimensions=7), "dtype_needs_whole_bytes"),
    ],
)
def test_what_has_no_such_form_is_refused(
    dtype: OutputDtype, options: EmbedOptions, code: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_output_dtype(dtype, options, MODEL)
    assert caught.value.code == code
