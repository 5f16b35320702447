"""Folded records: small at any length, for documents that only grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from engine.engine import Engine
from engine.living.record_bytes import from_bytes
from engine.living_types import LivingEmbedding
from engine.types import ChunkPlan, HeadingPlan
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

LINE = "the quick brown fox jumps over number {} and {} while seven wizards box {}."
PARAGRAPHS = [
    " ".join(LINE.format(part, line, part * line) for line in range(4)) for part in range(90)
]
SIZES = (50, 70, 90)


def text(count: int) -> str:
    return "\n\n".join(PARAGRAPHS[:count])


@pytest.fixture(scope="module")
def engine(write_checkpoint: WriteCheckpoint) -> Engine:
    return engine_of(write_checkpoint, "mean")


def engine_of(write_checkpoint: WriteCheckpoint, pooling: str) -> Engine:
    checkpoint = write_checkpoint("bert", pooling=pooling)
    return Engine(calibrated(checkpoint, block_size=64, num_sinks=(1, 1)))


def assert_the_same_but_for_rounding(one: LivingEmbedding, other: LivingEmbedding) -> None:
    np.testing.assert_allclose(one.vector, other.vector, atol=2e-6)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_a_folded_record_reads_on_as_the_whole_one(
    write_checkpoint: WriteCheckpoint, pooling: str
) -> None:
    """The same vectors of what is read, the same vector of the document, the same numbers."""
    engine = engine_of(write_checkpoint, pooling)
    chunks = ChunkPlan(tokens=200, context="balanced")
    whole = engine.embed_document(text(SIZES[0]), chunks=chunks, record=True)
    folded = engine.embed_document(text(SIZES[0]), chunks=chunks, record=True, fold=True)
    assert_the_same_but_for_rounding(folded, whole)
    assert (folded.sealed, len(folded.chunks)) == (0, len(whole.chunks))
    for size in SIZES[1:]:
        whole = engine.update_document(whole.record, text(size))
        folded = engine.update_document(folded.record, text(size))
        assert folded.tokens_read == whole.tokens_read < whole.tokens
        assert_the_same_but_for_rounding(folded, whole)
        tail = whole.chunks[folded.sealed :]
        assert [one.index for one in folded.chunks] == [one.index for one in tail]
        assert folded.gone == whole.gone
        for a, b in zip(folded.chunks, tail, strict=True):
            assert (a.tokens, a.characters, a.previous) == (b.tokens, b.characters, b.previous)
            np.testing.assert_allclose(a.vector, b.vector, atol=2e-6)
        kept = [one.staleness for one in whole.chunks[: folded.sealed]]
        assert folded.sealed_staleness >= max(kept) * 0.99


def test_its_size_does_not_grow(engine: Engine) -> None:
    found = engine.embed_document(text(SIZES[0]), record=True, fold=True)
    sizes = [len(found.record)]
    for size in SIZES[1:]:
        found = engine.update_document(found.record, text(size))
        assert len(from_bytes(found.record, engine.model).segments) == 2
        sizes.append(len(found.record))
    assert max(sizes) < 1.2 * min(sizes)


def test_an_edit_before_the_end_reads_all_that_was_folded(engine: Engine) -> None:
    chunks = HeadingPlan(max_tokens=200)
    first = engine.embed_document(text(70), chunks=chunks, record=True, fold=True)
    folded, last = from_bytes(first.record, engine.model).segments
    update = engine.update_document(first.record, f"A new beginning. {text(70)}")
    assert update.sealed == 0
    assert update.tokens_read >= folded.num_rows
    assert update.gone[: folded.num_sealed] == tuple(range(folded.num_sealed))
    kept = [one.previous for one in update.chunks if one.previous is not None]
    assert len(kept) + len(update.gone) == len(first.chunks)
    assert len(update.chunks[-1].vector) == len(first.chunks[-1].vector)
    assert last.num_sealed == 0


def test_too_stale_or_exact_reads_everything(engine: Engine) -> None:
    first = engine.embed_document(text(50), chunks=ChunkPlan(tokens=200), record=True, fold=True)
    fresh = engine.embed_document(text(70), chunks=ChunkPlan(tokens=200), record=True, fold=True)
    for update in (
        engine.update_document(first.record, text(70), exact=True),
        engine.update_document(first.record, text(70), max_staleness=0.0),
    ):
        assert update.record == fresh.record
        assert update.sealed == 0
        assert update.staleness == 0


def headed(count: int) -> str:
    return "\n\n".join(f"PART {number}\n\n{PARAGRAPHS[number]}" for number in range(count))


MARKDOWN = f"\n\n# Later\n\n{PARAGRAPHS[80]}\n\n# Last\n\n{PARAGRAPHS[81]}"


@pytest.mark.parametrize("fold", [False, True])
def test_headings_of_another_format_are_read_anew(engine: Engine, fold: bool) -> None:
    """Kept chunks were cut at the headings of the format that the text seemed to have before, and
    the headings of sealed ones are with the caller."""
    chunks = HeadingPlan(max_tokens=200)
    first = engine.embed_document(headed(60), chunks=chunks, record=True, fold=fold)
    assert from_bytes(first.record, engine.model).heading_format == "plain"
    assert first.chunks[-1].headings == ("PART 59",)
    grown = engine.update_document(first.record, headed(70))
    assert 0 < grown.tokens_read < grown.tokens
    changed = engine.update_document(grown.record, headed(70) + MARKDOWN)
    fresh = engine.embed_document(headed(70) + MARKDOWN, chunks=chunks, record=True, fold=fold)
    assert changed.record == fresh.record
    assert [one.headings for one in changed.chunks] == [one.headings for one in fresh.chunks]
    assert {one.previous for one in changed.chunks} == {None}
    assert changed.gone == tuple(range(grown.sealed + len(grown.chunks)))
    assert (changed.sealed, changed.chunks[0].headings) == (0, ())
    assert changed.chunks[-1].headings == ("Last",)


def test_a_stated_format_stays(engine: Engine) -> None:
    chunks = HeadingPlan(max_tokens=200, format="plain")
    first = engine.embed_document(headed(60), chunks=chunks, record=True, fold=True)
    changed = engine.update_document(first.record, headed(60) + MARKDOWN)
    assert changed.sealed
    assert changed.tokens_read < changed.tokens
