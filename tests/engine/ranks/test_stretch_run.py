"""A text read by several ranks, in one process and in lockstep, compared with one reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.execution.inputs import PreparedText
from engine.execution.model_runner import TiledRun
from engine.model.embedding_model import EmbeddingModel
from engine.model.stretch_pass import divide
from engine.ranks.exchange import Pending
from engine.ranks.stretch_run import divide_text, open_rank
from engine.types import Span, Vector
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

BLOCK = 32
TOLERANCE = 2e-6
LENGTHS = [1, 2, 31, BLOCK + 1, 5 * BLOCK + 1, 700, 2_500]


class Lockstep:
    """Ranks of one process: the n-th exchange of each is the n-th of all."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.parts: list[list[Tensor | None]] = []

    def of(self, rank: int) -> OneRank:
        return OneRank(self, rank)


class OneRank:
    def __init__(self, all_ranks: Lockstep, rank: int) -> None:
        self._all, self._rank, self._num_exchanges = all_ranks, rank, 0

    def all_gather(self, part: Tensor) -> Pending:
        if self._num_exchanges == len(self._all.parts):
            self._all.parts.append([None] * self._all.size)
        parts = self._all.parts[self._num_exchanges]
        self._num_exchanges += 1
        parts[self._rank] = part
        return Gathered(parts)

    gather = all_gather


class Gathered:
    def __init__(self, parts: Sequence[Tensor | None]) -> None:
        self._parts = parts

    def poll(self) -> Tensor | None:
        found = [part for part in self._parts if part is not None]
        return torch.stack(found) if len(found) == len(self._parts) else None


def read_over_ranks(model: EmbeddingModel, text: PreparedText, num_ranks: int) -> Vector:
    together = Lockstep(num_ranks)
    runs = [
        open_rank(model, part, together.of(part.rank), keep_projections=bool(part.rank % 2))
        for part in divide_text(model, text, num_ranks)
    ]
    while any(run.result is None for run in runs):
        for run in runs:
            if run.result is None:
                run.step()
    result = runs[0].result
    assert result is not None
    return result


def read_alone(model: EmbeddingModel, text: PreparedText) -> Vector:
    run = TiledRun(model, text)
    while run.result is None:
        run.step()
    return run.result


def some_text(length: int, spans: Sequence[Span] = (), vocabulary: int = 150) -> PreparedText:
    ids = np.random.default_rng(length).integers(5, vocabulary, length)
    return PreparedText(
        ids=ids.astype(np.int32),
        spans=(Span(0, length), *spans),
        chunks=(),
        num_tokens=length,
        dropped=None,
    )


def directions(vectors: Vector) -> Vector:
    found: Vector = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return found


def difference(model: EmbeddingModel, text: PreparedText, num_ranks: int) -> float:
    apart, alone = read_over_ranks(model, text, num_ranks), read_alone(model, text)
    assert apart.shape == alone.shape
    return float(np.abs(directions(apart) - directions(alone)).max())


@pytest.fixture(scope="module")
def small_model(write_checkpoint: WriteCheckpoint) -> EmbeddingModel:
    return calibrated(write_checkpoint("bert"), block_size=BLOCK, num_sinks=(2, 3))


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("length", LENGTHS)
def test_the_answer_is_that_of_one_rank(
    length: int, num_ranks: int, small_model: EmbeddingModel
) -> None:
    """The whole text, chunks across stretches, and the state of every token."""
    overlapping = [Span(at, min(at + 90, length)) for at in range(0, length, 64)]
    tokens = [Span(at, at + 1) for at in range(length)]
    text = some_text(length, [*overlapping, *tokens])
    assert difference(small_model, text, num_ranks) < TOLERANCE


@pytest.mark.parametrize("kind", ["lln", "block_diagonal", ["lln", "lln_diag"]])
def test_every_kind_of_attention(kind: str | list[str], small_model: EmbeddingModel) -> None:
    model = small_model.with_attention(kind)
    assert difference(model, some_text(700, [Span(100, 600)]), 3) < TOLERANCE


@pytest.mark.parametrize("family", ["roberta", "distilbert", "modernbert"])
@pytest.mark.parametrize("length", [65, 129, 700])
def test_every_family(family: str, length: int, write_checkpoint: WriteCheckpoint) -> None:
    """ModernBERT's local layers need rows of the neighbouring stretches."""
    model = calibrated(write_checkpoint(family), block_size=16, num_sinks=(2, 3))
    assert difference(model, some_text(length, [Span(3, 60)]), 3) < TOLERANCE


@pytest.mark.parametrize("pooling", ["cls", "max", "none"])
def test_every_pooling(pooling: str, write_checkpoint: WriteCheckpoint) -> None:
    """Without pooling, the answer is the states of all tokens."""
    folder = write_checkpoint("bert", pooling=pooling)
    model = calibrated(folder, block_size=BLOCK, num_sinks=(2, 3))
    assert model.checkpoint.pooling == pooling
    text = some_text(700, [Span(0, 90), Span(64, 600), Span(640, 700)])
    assert difference(model, text, 3) < TOLERANCE


def test_one_rank_gives_the_same_bits(small_model: EmbeddingModel) -> None:
    text = some_text(700, [Span(100, 600)])
    alone = read_alone(small_model, text)
    assert np.array_equal(read_over_ranks(small_model, text, 1), alone)
    within_a_block = some_text(BLOCK)
    alone = read_alone(small_model, within_a_block)
    assert np.array_equal(read_over_ranks(small_model, within_a_block, 8), alone)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("length", [*range(1, 12), 31, 32, 33, 35, 36, 64, 67, 68, 5_000])
def test_stretches_are_whole_blocks_and_hold_their_sinks(
    length: int, num_ranks: int, small_model: EmbeddingModel
) -> None:
    stretches = divide(small_model.encoder, length, num_ranks)
    assert len(stretches) == num_ranks
    assert [rows.start for rows in stretches[1:]] == [rows.end for rows in stretches[:-1]]
    assert (stretches[0].start, stretches[-1].end) == (0, length)
    held = [rows for rows in stretches if rows.end > rows.start]
    assert list(stretches[: len(held)]) == held, "the empty ones come last"
    assert all(rows.start % 16 == 0 for rows in held)
    sizes = [rows.end - rows.start for rows in held]
    assert sizes[0] >= min(2, length)
    assert sizes[-1] >= min(3, length)
    assert max(sizes) - min(sizes) <= 2 * BLOCK
