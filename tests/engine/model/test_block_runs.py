"""Long texts with their own block size, in a batch with others and alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from engine.checkpoint.block_size import LongBlock, block_of
from engine.model.block_runs import block_runs
from engine.model.embedding_model import EmbeddingModel
from engine.model.tiled_pass import TiledPass
from kernels.attention import PackedSequences
from tests.engine.model.readings import at_once, by_tiles, some_ids
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

USUAL, LONG = 64, LongBlock(beyond=200, size=32)


@pytest.fixture
def usual(write_checkpoint: WriteCheckpoint) -> EmbeddingModel:
    return calibrated(write_checkpoint("bert"), block_size=USUAL, num_sinks=(1, 1))


@pytest.fixture
def model(usual: EmbeddingModel) -> EmbeddingModel:
    return with_long(usual, LONG)


def with_long(model: EmbeddingModel, long: LongBlock) -> EmbeddingModel:
    assert model.calibration is not None
    return model.with_calibration(replace(model.calibration, long_block=long))


def test_long_texts_are_longer_than_the_limit() -> None:
    assert [block_of(n, USUAL, LONG) for n in (1, 200, 201, 10**6)] == [64, 64, 32, 32]
    assert block_of(10**6, USUAL, None) == 64


@pytest.mark.parametrize("kind", ["lln_diag", "block_diagonal"])
@pytest.mark.parametrize("length", [0, 1, 64, 65, 200, 201, 333, 2_500])
def test_every_length_has_its_own_block_size(
    kind: str, length: int, usual: EmbeddingModel, model: EmbeddingModel
) -> None:
    assert usual.calibration is not None
    ids = some_ids(length)
    size = block_of(length, USUAL, LONG)
    one_size = usual.with_calibration(replace(usual.calibration, block_size=size))
    wanted = at_once(one_size.with_attention(kind).encoder, ids)
    encoder = model.with_attention(kind).encoder
    torch.testing.assert_close(at_once(encoder, ids), wanted, rtol=0, atol=0)
    if length:
        assert (by_tiles(encoder, ids) - wanted).abs().max() < 2e-5


def test_a_batch_changes_no_bit(model: EmbeddingModel) -> None:
    """In any order, because runs are of neighbours."""
    texts = [some_ids(n) for n in (300, 5, 64, 201, 70, 0, 333, 64, 199)]
    bounds = [0, *accumulate(map(len, texts))]
    with torch.inference_mode():
        together = model.encoder(torch.from_numpy(np.concatenate(texts).astype(np.int64)), bounds)
    for ids, (start, end) in zip(texts, pairwise(bounds), strict=True):
        assert torch.equal(together[start:end], at_once(model.encoder, ids)), len(ids)


def test_a_batch_in_order_has_three_runs_at_most() -> None:
    bounds = tuple(accumulate((0, 3, 9, 64, 65, 100, 200, 201, 400)))
    runs = block_runs(bounds, USUAL, LONG, torch.device("cpu"))
    assert [(run.block_size, run.is_whole) for run in runs] == [
        (64, True),
        (64, False),
        (32, False),
    ]
    assert [run.packed.bounds for run in runs] == [(0, 3, 12, 76), (0, 65, 165, 365), (0, 201, 601)]


def test_tiles_can_be_measured_as_those_of_a_longer_text(usual: EmbeddingModel) -> None:
    assert usual.calibration is not None
    calibration = replace(usual.calibration, num_sinks=(0, 0))
    small = usual.with_calibration(replace(calibration, block_size=LONG.size))
    wanted = by_tiles(small.with_attention("block_diagonal").encoder, some_ids(150))
    model = usual.with_calibration(replace(calibration, long_block=LONG))
    encoder = model.with_attention("block_diagonal").encoder
    tiles = TiledPass(encoder, some_ids(150), keep_projections=True, as_of_length=10_000)
    while not tiles.is_done:
        tiles.visit()
    torch.testing.assert_close(tiles.states, wanted)


def test_a_text_hardly_changes_where_long_blocks_begin(
    default_model: EmbeddingModel, long_text: str
) -> None:
    calibration = default_model.calibration
    assert calibration is not None
    assert calibration.long_block is not None
    one_size = default_model.with_calibration(replace(calibration, long_block=None))
    content = default_model.tokenizer.encode_batch([long_text])[0].content
    ids = content[: calibration.long_block.beyond + 1]
    assert len(ids) > calibration.long_block.beyond
    served, usual = (at_once(one.encoder, ids).mean(0) for one in (default_model, one_size))
    assert 0.99 < torch.cosine_similarity(served, usual, dim=0) < 0.9999


def test_gradients_go_through_all_runs(model: EmbeddingModel) -> None:
    attention = model.encoder.attention[0]
    bounds = [0, 40, 150, 400]
    shape = (400, model.info.num_heads, model.info.dim // model.info.num_heads)
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))

    packed = PackedSequences.of(bounds, torch.device("cpu"))
    loss = attention(q, k, v, packed).square().sum()
    for grad in torch.autograd.grad(loss, (q, k, v)):
        assert all(bool(grad[start:end].any()) for start, end in pairwise(bounds))
