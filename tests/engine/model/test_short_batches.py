"""Batches of short texts are read in two halves side by side, which changes no bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from engine.model import short_batches
from engine.model.encoder import Encoder
from engine.model.short_batches import halves_of
from engine.platform.lanes import lanes_of
from tests.engine.model.readings import some_ids
from tests.engine.precisions import INT8_FORMS
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from engine.model.embedding_model import EmbeddingModel
    from tests.conftest import WriteCheckpoint

BATCHES = [(1, 1), (4, 4, 4, 4), (30, 31, 33, 40, 60, 64), (64, 64, 65, 65), (7, 7, 65, 100, 200)]
"""Lengths. Blocks have 64 tokens, so with LLN the last texts of the last batches are not short."""


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def on_two_threads(encoder: Encoder) -> Encoder:
    """Made again, and ready. Loading has set the number of threads to that of the cores."""
    torch.set_num_threads(2)
    made = encoder.with_weights(encoder.weights)
    if made._short_batches is not None:
        made._short_batches.rows_agree.result()
    return made


def batch_of(lengths: Sequence[int]) -> tuple[Tensor, list[int]]:
    ids = [torch.from_numpy(some_ids(length)).long() for length in lengths]
    return torch.cat(ids), [0, *accumulate(lengths)]


def splits(encoder: Encoder, lengths: Sequence[int]) -> bool:
    found = encoder._short_batches
    return found is not None and len(found.split(batch_of(lengths)[1])[0]) == 2


@pytest.mark.parametrize("dtype", ["float32", *INT8_FORMS])
@pytest.mark.parametrize("kind", ["softmax", "lln_diag"])
@torch.inference_mode()
def test_it_changes_no_bit(kind: str, dtype: str, write_checkpoint: WriteCheckpoint) -> None:
    folder = write_checkpoint("bert")
    model = calibrated(folder, block_size=64, num_sinks=(1, 1), dtype=dtype)
    encoder = on_two_threads(model.with_attention(kind).encoder)
    for lengths in BATCHES:
        ids, bounds = batch_of(lengths)
        assert splits(encoder, lengths), lengths
        states = encoder(ids, bounds)
        *_, by_layer = encoder.walk(ids, bounds)
        assert torch.equal(states, by_layer), lengths
        for start, end in pairwise(bounds):
            assert torch.equal(states[start:end], encoder(ids[start:end], [0, end - start]))


@torch.inference_mode()
def test_the_default_model(default_model: EmbeddingModel) -> None:
    encoder = on_two_threads(default_model.encoder)
    lengths = (16, 24, 130, 140)
    assert splits(encoder, lengths)
    ids, bounds = batch_of(lengths)
    *_, by_layer = encoder.walk(ids, bounds)
    assert torch.equal(encoder(ids, bounds), by_layer)


@torch.inference_mode()
def test_a_batch_is_read_whole_if_halves_do_not_fit(write_checkpoint: WriteCheckpoint) -> None:
    model = calibrated(write_checkpoint("bert"), block_size=64, num_sinks=(1, 1))
    encoder = on_two_threads(model.encoder)
    assert splits(encoder, (20, 20))
    assert not splits(encoder, (60,))
    assert not splits(encoder, (10, 60))
    assert not splits(encoder, (200, 10, 10))  # batches are in order of length
    with torch.inference_mode(False):  # gradients are wanted
        assert not splits(encoder, (20, 20))
    torch.set_num_threads(1)
    assert not splits(encoder, (20, 20))


@torch.inference_mode()
def test_rows_that_depend_on_the_threads_are_read_by_all(
    write_checkpoint: WriteCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = calibrated(write_checkpoint("bert"), block_size=64, num_sinks=(1, 1))
    assert splits(on_two_threads(model.encoder), (20, 20))
    short_batches._agree.cache_clear()
    monkeypatch.setattr(
        short_batches, "first_rows", lambda kind: [torch.tensor(torch.get_num_threads())]
    )
    assert not splits(on_two_threads(model.encoder), (20, 20))
    short_batches._agree.cache_clear()


@pytest.mark.parametrize(
    ("bounds", "halves"),
    [
        ([0, 10, 20], [[0, 10], [10, 20]]),
        ([5, 6, 7, 8, 9], [[5, 6, 7], [7, 8, 9]]),
        ([0, 44, 100], [[0, 44], [44, 100]]),
        ([0, 43, 100], []),
        ([0, 10], []),
        ([0], []),
        ([0, 1, 2, 3], []),
        ([0, 9, 18, 28, 38, 50], [[0, 9, 18, 28], [28, 38, 50]]),
    ],
)
def test_halves(bounds: list[int], halves: list[list[int]]) -> None:
    assert halves_of(bounds) == halves


def test_lanes_share_the_threads_and_leave_the_callers() -> None:
    lanes = lanes_of(2)
    assert lanes is not None
    assert lanes.map(lambda _: torch.get_num_threads(), range(4)) == [1] * 4
    assert torch.get_num_threads() == 2
    assert lanes_of(1) is None
    assert lanes_of(3) is None  # one would have nothing to do


def test_both_lanes_end_before_an_error_is_raised() -> None:
    lanes = lanes_of(2)
    assert lanes is not None
    done = []

    def work(item: int) -> None:
        if item == 0:
            raise MemoryError
        done.append(item)

    with pytest.raises(MemoryError):
        lanes.map(work, range(4))
    assert done == [1, 2, 3]
