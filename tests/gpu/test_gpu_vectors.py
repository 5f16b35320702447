"""Vectors of texts on a GPU: as on the CPU, and the same whatever is beside a text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kernels.attention import PackedSequences
from tests.gpu.device import DEVICE, LEAST_COSINE, MARKS, assert_alike, engine, text_of

pytestmark = MARKS

LENGTHS = (3, 4, 17, 128, 511, 512, 513, 700, 1024, 2049, 4096, 4097, 8192)
"""Around one block of 512, the length from which blocks have 256 tokens, and the position table."""

SWEPT = 100_000


def lengths_for(model: str) -> list[int]:
    longest = 2049 if model == "all-MiniLM-L6-v2" else max(LENGTHS)
    return [length for length in LENGTHS if length <= longest]


def texts_for(model: str) -> list[list[int]]:
    return [text_of(length, start=37 * length % 9000) for length in lengths_for(model)]


@cache
def on_the_cpu(model: str) -> NDArray[np.float32]:
    return engine(model, "cpu").embed(texts_for(model))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["default", "documents", "all-MiniLM-L6-v2"])
def test_vectors_are_those_of_the_cpu(model: str, dtype: str) -> None:
    found = engine(model, DEVICE, dtype).embed(texts_for(model))
    what = f"{model} in {dtype} at {lengths_for(model)} tokens"
    assert_alike(found, on_the_cpu(model), LEAST_COSINE[dtype], what)


def test_the_shortest_texts() -> None:
    texts = ["a", ".", "I", "Otters make their homes by rivers."]
    wanted = engine(device="cpu").embed(texts)
    assert_alike(engine().embed(texts), wanted, LEAST_COSINE["float32"], "short texts")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tokens", [9, 300, 700, 5000])
def test_a_vector_does_not_depend_on_its_batch(
    tokens: int, dtype: str, tell: Callable[[str], None]
) -> None:
    """Attention gives the same bits (below). Products of matrices may take another kernel for
    another number of rows, which differs in the last places."""
    text = text_of(tokens, start=500)
    others = [text_of(length, start=100 + length) for length in (3, 40, 200, 512, 900, 4500)]
    one = engine("default", DEVICE, dtype)
    (alone,) = one.embed([text])
    beside = [one.embed([*others[:at], text, *others[at:]])[at] for at in (0, 3, 6)]
    again = one.embed([text])[0]
    assert np.array_equal(alone, again), "the same call gave other bits"
    largest = max(float(np.abs(vector - alone).max()) for vector in beside)
    same = all(np.array_equal(vector, alone) for vector in beside)
    tell(f"{tokens} tokens in {dtype}: same bits {same}, largest difference {largest:.1e}")
    assert_alike(
        np.stack(beside),
        np.stack([alone] * 3),
        1 - (1e-6 if dtype == "float32" else 2e-4),
        f"{tokens} tokens in {dtype}, beside other texts",
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_gives_a_text_the_same_bits_in_every_batch(dtype: torch.dtype) -> None:
    attention = engine().model.encoder.attention[2]
    lengths = (300, 700, 512, 5000, 3)
    generator = torch.Generator().manual_seed(0)
    rows = [
        torch.randn(3, length, 12, 32, generator=generator).to(DEVICE, dtype) for length in lengths
    ]
    q, k, v = torch.cat(rows, 1)
    bounds = [0, *np.cumsum(lengths).tolist()]
    with torch.inference_mode():
        together = attention(q, k, v, PackedSequences.of(bounds, q.device))
        for length, one, start in zip(lengths, rows, bounds[:-1], strict=True):
            q, k, v = one
            alone = attention(q, k, v, PackedSequences.of([0, length], q.device))
            beside = together[start : start + length]
            apart = float((beside - alone).abs().max())
            assert torch.equal(beside, alone), f"{length} tokens are {apart:.1e} apart"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tiles_change_nothing(dtype: str) -> None:
    """A text that is swept in two tiles, and the same in one go."""
    text = text_of(SWEPT)
    in_tiles = engine("default", DEVICE, dtype, sweep_from=65_536).embed([text])
    at_once = engine("default", DEVICE, dtype, sweep_from=10 * SWEPT).embed([text])
    least = 1 - (1e-6 if dtype == "float32" else 1e-3)
    assert_alike(in_tiles, at_once, least, f"{SWEPT} tokens in tiles, in {dtype}")


@pytest.mark.parametrize("model", ["default", "documents"])
def test_a_swept_text_is_that_of_the_cpu(model: str) -> None:
    text = text_of(70_000)
    found = engine(model).embed([text])
    wanted = engine(model, "cpu").embed([text])
    assert_alike(found, wanted, LEAST_COSINE["float32"], f"{model}, 70,000 tokens")
