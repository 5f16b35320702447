"""Linked passages through the encoder, against their definition computed densely in float64."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.model.attention import LLNDiagAttention, SlidingWindowAttention
from engine.model.embedding_model import EmbeddingModel
from engine.model.linked_pass import LinkedPass, longest_passage
from kernels.attention import reference
from kernels.attention.packed_sequences import check_cu_seqlens
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

BOUNDS = (0, 16, 19, 31, 36, 52, 60, 72)
AROUND = (2, 1)  # a special token and a prompt of one before each passage


@pytest.fixture(params=["bert", "modernbert"])
def model(write_checkpoint: WriteCheckpoint, request: pytest.FixtureRequest) -> EmbeddingModel:
    return calibrated(write_checkpoint(request.param), block_size=16, num_sinks=(1, 2))


@pytest.fixture(scope="module")
def ids() -> NDArray[np.int32]:
    return np.random.default_rng(3).integers(5, 60, BOUNDS[-1]).astype(np.int32)


def linked(
    model: EmbeddingModel, ids: NDArray[np.int32], bounds: tuple[int, ...] = BOUNDS, **tiles: bool
) -> Tensor:
    one = LinkedPass(
        *(model.encoder, ids, bounds), around=AROUND, keep_projections=tiles.get("keep", True)
    )
    if tiles.get("small"):
        while one.shrink():
            pass
    while not one.is_done:
        one.visit()
    return one.states


@torch.inference_mode()
def by_definition(model: EmbeddingModel, ids: NDArray[np.int32]) -> Tensor:
    """Softmax over the passage alone, LLN over the content of all passages."""
    encoder = model.encoder
    lengths = np.diff(BOUNDS)
    positions = torch.from_numpy(np.concatenate([np.arange(count) for count in lengths]))
    of_rows = torch.from_numpy(np.repeat(lengths, lengths))
    x = encoder.embed(torch.from_numpy(ids.astype(np.int64)), positions, of_rows)
    for layer, attention in zip(encoder.layers, encoder.attention, strict=True):
        q, k, v = layer.project(x, positions)
        if isinstance(attention, LLNDiagAttention):
            attended = _lln_softmax(attention, q, k, v)
        else:  # a window that ends with its passage
            assert isinstance(attention, SlidingWindowAttention)
            attended = torch.cat(
                [
                    reference.sliding_window_attention(
                        q[a:b], k[a:b], v[a:b], half_window=attention.reach
                    )
                    for a, b in pairwise(BOUNDS)
                ]
            )
        x = layer.finish(attended.float().flatten(1), x)
    return x


def _lln_softmax(attention: LLNDiagAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    numbers = attention.parameters
    before, after = AROUND
    content = torch.cat([torch.arange(a + before, b - after) for a, b in pairwise(BOUNDS)])
    rows = check_cu_seqlens(None, q)
    scaled_q = reference.scaled_rows("alpha", numbers.alpha, q.double(), rows, numbers.q_map)
    scaled_k = reference.scaled_rows("beta", numbers.beta, k.double(), rows, numbers.k_map)
    weights = reference.lln_matrix(scaled_q, scaled_k[content])
    lln = torch.einsum("hij,jhd->ihd", weights, v.double()[content])
    passage = torch.bucketize(torch.arange(len(q)), torch.tensor(BOUNDS[1:]), right=True)
    own = passage[:, None] == passage
    diag = torch.einsum(
        "hij,jhd->ihd", reference.softmax_matrix(q.double(), k.double(), own), v.double()
    )
    outside = 1 - own.double().mean(1)
    share = attention.full_shares(q).double() * outside[:, None]
    return share[..., None] * lln + (1 - share[..., None]) * diag


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("small", [True, False])
def test_it_is_its_definition(
    model: EmbeddingModel, ids: NDArray[np.int32], keep: bool, small: bool
) -> None:
    states, defined = linked(model, ids, keep=keep, small=small), by_definition(model, ids)
    scale = max(1.0, float(defined.abs().max()))  # ModernBERT's states are not normalised
    torch.testing.assert_close(states / scale, defined / scale, atol=2e-6, rtol=2e-5)


def test_without_lln_passages_are_alone(model: EmbeddingModel, ids: NDArray[np.int32]) -> None:
    without = model.with_attention("block_diagonal")
    with torch.inference_mode():
        alone = without.encoder(torch.from_numpy(ids.astype(np.int64)), BOUNDS)
    torch.testing.assert_close(linked(without, ids), alone, atol=2e-6, rtol=2e-5)


def test_a_single_passage_is_alone(model: EmbeddingModel, ids: NDArray[np.int32]) -> None:
    first = ids[:16]
    with torch.inference_mode():
        alone = model.encoder(torch.from_numpy(first.astype(np.int64)), (0, 16))
    torch.testing.assert_close(linked(model, first, (0, 16)), alone, atol=2e-6, rtol=2e-5)


def test_each_passage_depends_on_the_others(model: EmbeddingModel, ids: NDArray[np.int32]) -> None:
    changed = ids.copy()
    changed[52] += 1
    far = slice(0, 16)
    before, after = linked(model, ids)[far], linked(model, changed)[far]
    assert not torch.equal(before, after)
    torch.testing.assert_close(before, after, atol=0.5, rtol=0.5)


def test_a_passage_is_a_block_at_most(model: EmbeddingModel) -> None:
    assert longest_passage(model.encoder) == 16
