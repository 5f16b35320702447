"""Segments through the encoder, against their definition computed densely in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.model.attention import LLNDiagAttention, SlidingWindowAttention
from engine.model.embedding_model import EmbeddingModel
from engine.model.segmented_pass import LayerStates, Reading, SegmentedPass
from kernels.attention import reference
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

BLOCK = 16
LENGTHS = (63, 5, 40, 16)


@pytest.fixture(params=["bert", "modernbert"])
def model(write_checkpoint: WriteCheckpoint, request: pytest.FixtureRequest) -> EmbeddingModel:
    return calibrated(write_checkpoint(request.param), block_size=BLOCK, num_sinks=(1, 2))


def ids_of(lengths: tuple[int, ...]) -> NDArray[np.int32]:
    return np.random.default_rng(3).integers(5, 60, sum(lengths)).astype(np.int32)


def run(one: SegmentedPass) -> SegmentedPass:
    while not one.is_done:
        one.visit()
    return one


def read_all(model: EmbeddingModel, ids: NDArray[np.int32], *, keep: bool = True) -> SegmentedPass:
    readings = [Reading(num_rows=length) for length in LENGTHS]
    return run(SegmentedPass(model.encoder, ids, readings, length=len(ids), keep_projections=keep))


@torch.inference_mode()
def by_definition(model: EmbeddingModel, ids: NDArray[np.int32]) -> Tensor:
    """Every segment with positions and blocks of its own; LLN over all tokens; all sinks seen."""
    encoder = model.encoder
    ends = np.cumsum(LENGTHS).tolist()
    segments = [slice(end - count, end) for end, count in zip(ends, LENGTHS, strict=True)]
    positions = torch.cat([torch.arange(count) for count in LENGTHS])
    x = encoder.embed(torch.from_numpy(ids.astype(np.int64)), positions, len(ids))
    for layer, attention in zip(encoder.layers, encoder.attention, strict=True):
        q, k, v = layer.project(x, positions)
        if isinstance(attention, LLNDiagAttention):
            attended = _lln_diag(attention, q, k, v, segments)
        else:  # a window that ends with its segment
            assert isinstance(attention, SlidingWindowAttention)
            parts = [
                reference.sliding_window_attention(
                    q[rows], k[rows], v[rows], half_window=attention.reach
                )
                for rows in segments
            ]
            attended = torch.cat(parts)
        x = layer.finish(attended.float().flatten(1), x)
    return x


def _lln_diag(
    attention: LLNDiagAttention, q: Tensor, k: Tensor, v: Tensor, segments: list[slice]
) -> Tensor:
    numbers, count = attention.parameters, len(q)
    lln = reference.lln_attention(
        *(q, k, v),
        alpha=numbers.alpha,
        beta=numbers.beta,
        q_map=numbers.q_map,
        k_map=numbers.k_map,
    )
    at = torch.arange(count)
    segment = torch.bucketize(at, torch.tensor([rows.stop for rows in segments]), right=True)
    starts = torch.tensor([rows.start for rows in segments])[segment]
    block = (at - starts) // BLOCK
    first, last = numbers.num_sinks
    is_sink = (at < first) | (at >= count - last)
    own = (segment[:, None] == segment) & (block[:, None] == block)
    weights = reference.softmax_matrix(q.double(), k.double(), own | is_sink)
    diag = torch.einsum("hij,jhd->ihd", weights, v.double())
    share = attention.shares(q, count).double().unsqueeze(-1)
    return share * lln + (1 - share) * diag


@pytest.mark.parametrize("keep", [True, False])
def test_one_pass_over_segments_is_their_definition(model: EmbeddingModel, keep: bool) -> None:
    ids = ids_of(LENGTHS)
    states, defined = read_all(model, ids, keep=keep).states, by_definition(model, ids)
    scale = max(1.0, float(defined.abs().max()))  # ModernBERT's states are not normalised
    torch.testing.assert_close(states / scale, defined / scale, atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("kept", [(0,), (3,), (1, 2), (0, 1, 3)])
def test_kept_segments_count_as_if_they_were_read(
    model: EmbeddingModel, kept: tuple[int, ...]
) -> None:
    """Nothing changed, so reading some segments beside kept ones gives the same bits."""
    ids = ids_of(LENGTHS)
    whole = read_all(model, ids)
    by_segment: list[LayerStates] = list(zip(*whole.states_read, strict=True))
    ends = np.cumsum(LENGTHS).tolist()
    read = [index for index in range(len(LENGTHS)) if index not in kept]
    rows = np.concatenate([np.arange(ends[i] - LENGTHS[i], ends[i]) for i in read])
    first, last = whole.sinks_read
    part = run(
        SegmentedPass(
            model.encoder,
            ids[rows],
            [
                Reading(states=by_segment[index]) if index in kept else Reading(LENGTHS[index])
                for index in range(len(LENGTHS))
            ],
            length=len(ids),
            keep_projections=True,
            first_sinks=first if 0 in kept else None,
            last_sinks=last if len(LENGTHS) - 1 in kept else None,
        )
    )
    assert torch.equal(part.states, whole.states[torch.from_numpy(rows)])


def test_small_tiles_give_the_same_states(model: EmbeddingModel) -> None:
    ids = ids_of(LENGTHS)
    whole = read_all(model, ids).states
    readings = [Reading(num_rows=length) for length in LENGTHS]
    one = SegmentedPass(model.encoder, ids, readings, length=len(ids), keep_projections=True)
    while one.shrink():
        pass
    scale = max(1.0, float(whole.abs().max()))
    torch.testing.assert_close(run(one).states / scale, whole / scale, atol=2e-6, rtol=2e-5)


def test_a_failed_visit_changes_nothing(
    model: EmbeddingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = ids_of(LENGTHS)
    whole = read_all(model, ids).states
    readings = [Reading(num_rows=length) for length in LENGTHS]
    one = SegmentedPass(model.encoder, ids, readings, length=len(ids), keep_projections=True)
    visits = 0
    while not one.is_done:
        visits += 1
        if visits % 3 == 0:
            with monkeypatch.context() as patch:
                patch.setattr(one, "_with_tile", _fail)
                patch.setattr(one, "_through_layer", _fail)
                with pytest.raises(MemoryError):
                    one.visit()
        one.visit()
    assert torch.equal(one.states, whole)


def _fail(*_: object) -> None:
    raise MemoryError
