"""The encoder tile by tile, compared with the encoder at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from engine.model.attention import LLNDiagAttention
from engine.model.embedding_model import EmbeddingModel
from engine.model.encoder import Encoder
from engine.model.layers import PostNormLayer
from engine.model.tiled_pass import TiledPass, can_tile, tile_rows
from tests.engine.model.readings import at_once, by_tiles, some_ids
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

LINEAR = ("lln_diag", "lln", "block_diagonal")
BLOCK = 256
TILE = 1024


@pytest.fixture
def small_model(write_checkpoint: WriteCheckpoint) -> EmbeddingModel:
    return calibrated(write_checkpoint("bert"), block_size=BLOCK, num_sinks=(1, 1))


@pytest.mark.parametrize("kind", LINEAR)
@pytest.mark.parametrize("length", [1, 2, BLOCK, BLOCK + 1, TILE, TILE + 1, TILE + 2, 2_500])
def test_states_are_those_of_one_pass(kind: str, length: int, small_model: EmbeddingModel) -> None:
    encoder = small_model.with_attention(kind).encoder
    ids = some_ids(length)
    difference = by_tiles(encoder, ids) - at_once(encoder, ids)
    assert difference.abs().max() < 2e-5, "of states whose size is some units"


def test_lln_sets_in_gradually(small_model: EmbeddingModel) -> None:
    """One token more than a block hardly changes a text: LLN's effect grows with the length."""
    both, diag = (small_model.with_attention(kind).encoder for kind in ("lln_diag", LINEAR[2]))

    def change(length: int) -> float:
        ids = some_ids(length)
        return float((at_once(both, ids) - at_once(diag, ids)).norm() / length**0.5)

    changes = [change(length) for length in (BLOCK, BLOCK + 1, BLOCK + 64, 2 * BLOCK, 8 * BLOCK)]
    assert changes == sorted(changes)
    assert changes[0] == 0
    assert 0 < changes[1] < 0.02 * changes[-1]


def test_recomputed_projections_change_little(small_model: EmbeddingModel) -> None:
    encoder, ids = small_model.encoder, some_ids(2_500)
    kept, made_again = (by_tiles(encoder, ids, keep=keep) for keep in (True, False))
    assert (kept - made_again).abs().max() < 1e-5


def test_layers_may_differ_in_attention(small_model: EmbeddingModel) -> None:
    mixed = small_model.with_attention(["lln", "lln_diag"]).encoder
    ids = some_ids(2_100)
    assert (by_tiles(mixed, ids) - at_once(mixed, ids)).abs().max() < 2e-5


def test_a_softmax_layer_cannot_be_tiled(small_model: EmbeddingModel) -> None:
    assert can_tile(small_model.encoder)
    assert not can_tile(small_model.with_attention("softmax").encoder)
    assert not can_tile(small_model.with_attention(["softmax", "lln_diag"]).encoder)


def test_smaller_tiles_from_the_middle_on(small_model: EmbeddingModel) -> None:
    encoder, ids = small_model.encoder, some_ids(2_500)
    tiles = TiledPass(encoder, ids, keep_projections=True)
    sizes = [tiles.tile_rows]
    for _ in range(5):
        tiles.visit()
    while tiles.shrink():
        sizes.append(tiles.tile_rows)
        tiles.visit()
    while not tiles.is_done:
        tiles.visit()
    assert sizes == [1_024, 512, 256]
    assert (tiles.states - at_once(encoder, ids)).abs().max() < 2e-5


@pytest.mark.parametrize("part", ["embed", "project", "finish", "attend_tile", "state_of"])
def test_a_visit_that_fails_can_be_tried_again(
    part: str, small_model: EmbeddingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever memory runs out in a visit, nothing has changed."""
    encoder, ids = small_model.encoder, some_ids(2_100)
    tiles = TiledPass(encoder, ids, keep_projections=True)
    owners = (Encoder, PostNormLayer, LLNDiagAttention)
    owner = next(one for one in owners if hasattr(one, part))

    def runs_out(*_: object) -> None:
        raise MemoryError

    num_failures = 0
    while not tiles.is_done:
        with monkeypatch.context() as patch:
            patch.setattr(owner, part, runs_out)
            try:
                tiles.visit()
            except MemoryError:
                num_failures += 1
            else:
                continue  # a visit that does without this part
        tiles.visit()
    assert num_failures >= 3
    assert (tiles.states - at_once(encoder, ids)).abs().max() < 2e-5


def test_visits_report_finished_rows(small_model: EmbeddingModel) -> None:
    tiles = TiledPass(small_model.encoder, some_ids(2_100), keep_projections=True)
    visits = []
    while not tiles.is_done:
        visits.append(tiles.visit())
    assert [(visit.layer, visit.rows) for visit in visits] == [
        (layer, rows) for layer in range(-1, 2) for rows in ((0, 1024), (1024, 2048), (2048, 2100))
    ]
    assert torch.equal(torch.cat([visit.states for visit in visits[-3:]]), tiles.states)


@pytest.mark.parametrize("family", ["roberta", "distilbert", "modernbert"])
def test_every_family_and_odd_blocks(family: str, write_checkpoint: WriteCheckpoint) -> None:
    model = calibrated(write_checkpoint(family), block_size=48, num_sinks=(2, 3))
    ids = some_ids(3_300)
    assert tile_rows(model.encoder, len(ids)) == 1_008
    expected = at_once(model.encoder, ids)
    # Relative to the largest: ModernBERT's states are not normalised between its layers.
    assert (by_tiles(model.encoder, ids) - expected).abs().max() < 5e-6 * expected.abs().max()


def test_the_default_model(default_model: EmbeddingModel) -> None:
    encoder, ids = default_model.encoder, some_ids(1_500, 30_000)
    assert (by_tiles(encoder, ids) - at_once(encoder, ids)).abs().max() < 2e-5
