"""Documents read on from their records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import InvalidInput, LLNError, TextTooLong
from engine.living.record_bytes import from_bytes
from engine.living.staleness import UNSEEN
from engine.living.update import staleness_of
from engine.living_types import LivingEmbedding
from engine.model.embedding_model import load_model
from engine.text.chunking import SHARES, plan_chunks
from engine.text.segments import MOST_TOKENS, segment_at
from engine.text.titles import title_span
from engine.types import (
    Chunking,
    ChunkPlan,
    EmbedOptions,
    HeadingPlan,
    SentencePlan,
    Span,
    SpanPlan,
)
from tests.engine.living.texts import CHUNKS, TEXT

INSERTED = "\n\nattention over long documents costs the square of their length.\n\n"


@pytest.fixture(scope="module")
def titled(engine: Engine) -> LivingEmbedding:
    """The document as it was first read with a title."""
    return engine.embed_document(TEXT, chunks=CHUNKS, title="seven wizards", record=True)


def assert_same(one: LivingEmbedding, other: LivingEmbedding) -> None:
    np.testing.assert_array_equal(one.vector, other.vector)
    assert len(one.chunks) == len(other.chunks)
    for a, b in zip(one.chunks, other.chunks, strict=True):
        assert (a.tokens, a.characters, a.headings) == (b.tokens, b.characters, b.headings)
        np.testing.assert_array_equal(a.vector, b.vector)


@pytest.mark.parametrize("chunks", [None, CHUNKS, SentencePlan(), HeadingPlan()])
def test_a_document_of_one_segment_is_read_as_without_a_record(
    engine: Engine, chunks: Chunking | None
) -> None:
    text = f"# A heading\n\n{TEXT[:900]}"
    plain = engine.embed_document(text, chunks=chunks)
    living = engine.embed_document(text, chunks=chunks, record=True)
    assert living.segments == 1
    np.testing.assert_allclose(living.vector, plain.vector, atol=2e-6)
    for a, b in zip(living.chunks, plain.chunks, strict=True):
        assert (a.tokens, a.characters, a.headings) == (b.tokens, b.characters, b.headings)
        np.testing.assert_allclose(a.vector, b.vector, atol=2e-6)


@pytest.mark.parametrize(
    "chunks", [CHUNKS, ChunkPlan(tokens=200, overlap=150), ChunkPlan(tokens=1)]
)
def test_no_segment_ends_with_a_few_tokens(engine: Engine, chunks: ChunkPlan) -> None:
    """What is left over would move more than others when the rest of the document changes."""
    found = engine.embed_document(TEXT, chunks=chunks, record=True)
    segments = from_bytes(found.record, engine.model).segments
    assert len(segments) > 3
    for segment in segments:
        spans = [chunk.tokens for chunk in segment.chunks]
        assert (spans[0].start, spans[-1].end) == (0, segment.num_content)
        assert len(spans) == len(plan_chunks(segment.num_content, chunks))
        sizes = [span.end - span.start for span in spans]
        assert max(sizes) <= chunks.tokens
        assert max(sizes) - min(sizes) < len(sizes)


def test_a_kept_segment_is_stale_although_its_view_seems_the_same(
    engine: Engine, first: LivingEmbedding
) -> None:
    update = engine.update_document(first.record, TEXT + INSERTED)
    record = from_bytes(update.record, engine.model)
    same = replace(record, views=(record.views[-1],) * len(record.views))
    last = len(record.views) - 1
    assert staleness_of(same, engine.model) == [
        0.0 if segment.view == last else UNSEEN for segment in record.segments
    ]
    assert 0 < sum(segment.view == last for segment in record.segments) < len(record.segments)


def test_an_unchanged_document_is_not_read(engine: Engine, first: LivingEmbedding) -> None:
    assert first.segments > 3
    again = engine.update_document(first.record, TEXT)
    assert again.tokens_read == again.staleness == 0
    assert [chunk.previous for chunk in again.chunks] == list(range(len(first.chunks)))
    assert_same(again, first)


@pytest.mark.parametrize(
    "edited",
    [
        pytest.param(TEXT[:9000] + INSERTED + TEXT[9000:], id="insert"),
        pytest.param(TEXT + INSERTED, id="append"),
        pytest.param(INSERTED.strip() + "\n\n" + TEXT, id="prepend"),
        pytest.param(TEXT[:9000] + TEXT[12000:], id="delete"),
        pytest.param(TEXT[6000:] + "\n\n" + TEXT[:6000], id="move"),
        pytest.param(TEXT + "\n\n" + TEXT, id="twice"),
    ],
)
def test_an_edit_reads_what_changed(engine: Engine, first: LivingEmbedding, edited: str) -> None:
    update = engine.update_document(first.record, edited)
    fresh = engine.embed_document(edited, chunks=CHUNKS, record=True)
    assert 0 < update.tokens_read < fresh.tokens
    assert [chunk.characters for chunk in update.chunks] == [
        chunk.characters for chunk in fresh.chunks
    ]
    kept = [chunk for chunk in update.chunks if chunk.previous is not None]
    assert kept
    assert all(chunk.staleness > 0 for chunk in kept)
    assert all(chunk.staleness == 0 for chunk in update.chunks if chunk.previous is None)
    gone = set(range(len(first.chunks))) - {chunk.previous for chunk in kept}
    assert update.gone == tuple(sorted(gone))
    for old in kept:
        assert old.previous is not None
        before = first.chunks[old.previous].characters
        assert edited[slice(*old.characters)] == TEXT[slice(*before)]
    assert min(a.vector @ b.vector for a, b in zip(update.chunks, fresh.chunks, strict=True)) > 0.95
    assert update.vector @ fresh.vector > 0.99


def test_exact_is_a_fresh_reading_to_the_last_bit(engine: Engine, first: LivingEmbedding) -> None:
    edited = TEXT[:9000] + INSERTED + TEXT[9000:]
    exact = engine.update_document(first.record, edited, exact=True)
    fresh = engine.embed_document(edited, chunks=CHUNKS, record=True)
    assert_same(exact, fresh)
    assert exact.record == fresh.record
    assert exact.staleness == 0
    assert exact.tokens_read == fresh.tokens_read


def test_an_undone_edit_gives_the_first_answer_again(
    engine: Engine, first: LivingEmbedding
) -> None:
    edited = engine.update_document(first.record, TEXT[:9000] + INSERTED + TEXT[9000:])
    back = engine.update_document(edited.record, TEXT)
    assert back.tokens_read < back.tokens
    assert back.staleness < edited.staleness / 10
    assert back.vector @ first.vector > 1 - 1e-5


def test_stale_segments_are_read_again_until_none_is(
    engine: Engine, first: LivingEmbedding
) -> None:
    edited = TEXT[:9000] + INSERTED + TEXT[9000:]
    lax = engine.update_document(first.record, edited, max_staleness=1.0)
    worst = max(chunk.staleness for chunk in lax.chunks)
    assert lax.rounds == 1
    strict = engine.update_document(first.record, edited, max_staleness=worst / 2)
    assert strict.rounds > 1
    assert max(chunk.staleness for chunk in strict.chunks) <= worst / 2
    assert_same(
        engine.update_document(first.record, edited, max_staleness=0.0),
        engine.update_document(first.record, edited, exact=True),
    )


def test_a_document_grown_step_by_step(engine: Engine) -> None:
    half = len(TEXT) // 2
    found = engine.embed_document(TEXT[:half], chunks=CHUNKS, record=True)
    read = 0
    for step in range(1, 6):
        found = engine.update_document(found.record, TEXT[: half + step * half // 5])
        read += found.tokens_read
    fresh = engine.embed_document(TEXT[: half + half // 5 * 5], chunks=CHUNKS, record=True)
    assert read < 1.7 * fresh.tokens
    assert found.vector @ fresh.vector > 0.99


def test_float16_records_are_smaller_and_nearly_as_good(engine: Engine) -> None:
    edited = TEXT + INSERTED
    wide = engine.embed_document(TEXT, record=True)
    half = engine.embed_document(TEXT, record="float16")
    assert len(half.record) < 0.75 * len(wide.record)
    a, b = (engine.update_document(one.record, edited) for one in (wide, half))
    assert a.vector @ b.vector > 1 - 1e-5


def test_headings_reach_over_segments(engine: Engine) -> None:
    text = f"# Above all\n\n{TEXT}\n\n## Below\n\n{TEXT[:3000]}"
    plan = HeadingPlan(max_tokens=200)
    found = engine.embed_document(text, chunks=plan, record=True)
    assert found.segments > 3
    assert {chunk.headings for chunk in found.chunks} == {("Above all",), ("Above all", "Below")}
    renamed = engine.update_document(found.record, text.replace("Above all", "Over everything"))
    assert {chunk.headings[0] for chunk in renamed.chunks} == {"Over everything"}


def test_a_kept_chunk_under_another_heading_is_not_as_before(engine: Engine) -> None:
    text = f"# Above all\n\n{TEXT}\n\n## Below\n\n{TEXT}"
    first = engine.embed_document(text, chunks=HeadingPlan(max_tokens=200), record=True)
    renamed = engine.update_document(first.record, text.replace("Below", "seven wizards"))
    under_it = [one for one in renamed.chunks if one.headings[1:] == ("seven wizards",)]
    assert any(one.staleness > 0 for one in under_it), "not all were read again"
    assert all(one.previous is None for one in under_it)
    kept = [one for one in renamed.chunks if one.previous is not None]
    assert kept
    for one in kept:
        assert one.previous is not None
        assert one.headings == first.chunks[one.previous].headings
    left = {one.previous for one in kept}
    assert renamed.gone == tuple(at for at in range(len(first.chunks)) if at not in left)


def test_a_title_is_read_again_where_it_changed(engine: Engine, titled: LivingEmbedding) -> None:
    same = engine.update_document(titled.record, TEXT, title="seven wizards")
    assert same.tokens_read == 0
    other = engine.update_document(titled.record, TEXT, title="a lazy dog")
    fresh = engine.embed_document(TEXT, chunks=CHUNKS, title="a lazy dog", record=True)
    assert 0 < other.tokens_read < fresh.tokens_read
    assert_same(other, fresh)


def test_a_told_title_is_taken_away(engine: Engine, titled: LivingEmbedding) -> None:
    kept = engine.update_document(titled.record, TEXT)
    assert_same(kept, titled)
    without = engine.update_document(titled.record, TEXT, title="")
    assert 0 < without.tokens_read < titled.tokens
    assert_same(without, engine.embed_document(TEXT, chunks=CHUNKS, record=True))
    with pytest.raises(InvalidInput, match="title is empty"):
        engine.update_document(titled.record, TEXT, title=" ")


def test_a_told_title_outlasts_chunks_that_do_not_use_it(
    engine: Engine, titled: LivingEmbedding
) -> None:
    late = engine.update_document(titled.record, TEXT, chunks=replace(CHUNKS, context="late"))
    assert_same(engine.update_document(late.record, TEXT, chunks=CHUNKS), titled)
    with pytest.raises(InvalidInput, match="not used when context is late"):
        engine.update_document(late.record, TEXT, title="a lazy dog")


def test_a_title_beyond_the_first_segment_is_not_used(engine: Engine) -> None:
    """The first words have its place, with their own share."""
    text = next(
        text
        for number in range(999)
        for text in [f"---\n{'.' * 800}{number}\n---\n\n# seven wizards\n\n{TEXT}"]
        if segment_at(text, 0, engine.model.tokenizer).characters.end < 900
    )
    title = title_span(text)
    assert title is not None
    assert text[slice(*title)] == "seven wizards"
    words = replace(CHUNKS, opening=SHARES["balanced"].opening)
    record = engine.embed_document(text, chunks=CHUNKS, record=True)
    assert_same(record, engine.embed_document(text, chunks=words, record=True))
    assert engine.update_document(record.record, text).tokens_read == 0


def test_a_document_beyond_the_limit_is_read_no_further() -> None:
    config = EngineConfig(device="cpu", max_text_tokens=1_000, max_softmax_text_tokens=50)
    engine = Engine(load_model("default", config=config), config=config)
    with pytest.raises(TextTooLong, match="more than 1000 tokens, which is the limit") as caught:
        engine.embed_document(TEXT * 20, record=True)
    assert 1_000 < int(caught.value.actual or 0) < 1_000 + MOST_TOKENS


@pytest.mark.parametrize("other", [ChunkPlan(tokens=100), replace(CHUNKS, context="late")])
def test_other_chunks_are_read_anew(
    engine: Engine, first: LivingEmbedding, other: ChunkPlan
) -> None:
    update = engine.update_document(first.record, TEXT, chunks=other)
    assert_same(update, engine.embed_document(TEXT, chunks=other, record=True))


def test_a_document_that_outgrows_one_block_is_read_anew(engine: Engine) -> None:
    short = "seven wizards box. " * 6
    first = engine.embed_document(short, chunks=CHUNKS, record=True)
    assert first.tokens < 64
    grown = engine.update_document(first.record, TEXT)
    assert_same(grown, engine.embed_document(TEXT, chunks=CHUNKS, record=True))
    back = engine.update_document(grown.record, short)
    assert_same(back, first)


@pytest.mark.parametrize(
    ("options", "chunks", "code"),
    [
        (EmbedOptions(truncate="end"), None, "invalid_truncate"),
        (EmbedOptions(), SpanPlan(spans=(Span(0, 5),)), "invalid_chunking"),
        (EmbedOptions(dimensions=10_000), None, "invalid_dimensions"),
    ],
)
def test_what_no_record_can_be_of(
    engine: Engine, options: EmbedOptions, chunks: Chunking | None, code: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        engine.embed_document(TEXT[:500], chunks=chunks, options=options, record=True)
    assert caught.value.code == code


def test_a_title_that_is_not_used_names_contexts_that_a_record_may_have(engine: Engine) -> None:
    late = replace(CHUNKS, context="late")
    with pytest.raises(InvalidInput) as caught:
        engine.embed_document(TEXT[:500], chunks=late, title="A title", record=True)
    assert caught.value.code == "unused_title"
    assert caught.value.limit == "balanced, title, opening, one_pass"


def test_an_unknown_precision_is_refused(engine: Engine) -> None:
    unknown: Any = "float64"
    with pytest.raises(InvalidInput, match="float32, float16") as caught:
        engine.embed_document(TEXT[:500], record=unknown)
    assert caught.value.code == "invalid_record_precision"


@pytest.mark.parametrize("staleness", [-0.1, 1.1, float("nan")])
def test_impossible_staleness(engine: Engine, staleness: float) -> None:
    record = engine.embed_document(TEXT[:500], record=True).record
    with pytest.raises(InvalidInput) as caught:
        engine.update_document(record, TEXT[:600], max_staleness=staleness)
    assert caught.value.code == "invalid_staleness"


def test_softmax_has_no_records(engine: Engine) -> None:
    with pytest.raises(LLNError) as caught:
        Engine(engine.model.with_attention("softmax")).embed_document(TEXT[:500], record=True)
    assert caught.value.code == "no_records"


def test_records_tell_no_text(engine: Engine) -> None:
    """Only sizes, hashes, headings and titles of a text stand in its record."""
    record = engine.embed_document(TEXT[:2000], chunks=CHUNKS, record=True)
    assert b"wizards" not in record.record
    assert from_bytes(record.record, engine.model).num_chunks == len(record.chunks)


def test_other_chunks_leave_none_of_the_record(engine: Engine, first: LivingEmbedding) -> None:
    update = engine.update_document(first.record, TEXT, chunks=ChunkPlan(tokens=100))
    assert update.gone == tuple(range(len(first.chunks)))
    assert all(chunk.previous is None for chunk in update.chunks)


def test_equal_segments_are_told_apart(engine: Engine) -> None:
    """Each of two equal passages keeps its own place in the record."""
    twice = engine.embed_document(TEXT + "\n\n" + TEXT + "\n\n" + TEXT, chunks=CHUNKS, record=True)
    again = engine.update_document(twice.record, TEXT + "\n\n" + TEXT + "\n\n" + TEXT)
    assert [chunk.previous for chunk in again.chunks] == list(range(len(twice.chunks)))
    assert again.gone == ()


def test_what_a_round_read_is_not_read_by_the_next(engine: Engine, first: LivingEmbedding) -> None:
    edited = TEXT[:9000] + INSERTED * 40 + TEXT[9000:]
    loose = engine.update_document(first.record, edited)
    worst = max(chunk.staleness for chunk in loose.chunks)
    tight = engine.update_document(first.record, edited, max_staleness=worst * 0.99)
    assert tight.rounds > 1
    assert tight.tokens_read <= tight.tokens
    assert all(chunk.staleness < worst for chunk in tight.chunks)
    assert [one.vector.shape for one in tight.chunks] == [one.vector.shape for one in loose.chunks]
