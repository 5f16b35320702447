"""plan_chunks and chunk_spans: every token in a chunk, every chunk with its characters."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidInput
from engine.text import TextTokenizer, chunk_spans, plan_chunks
from engine.types import ChunkPlan


@pytest.mark.parametrize(
    ("num_tokens", "tokens", "overlap", "expected"),
    [
        (0, 4, 0, []),
        (1, 4, 0, [(0, 1)]),
        (4, 4, 0, [(0, 4)]),
        (5, 4, 0, [(0, 4), (4, 5)]),
        (10, 4, 2, [(0, 4), (2, 6), (4, 8), (6, 10)]),
        (11, 4, 2, [(0, 4), (2, 6), (4, 8), (6, 10), (8, 11)]),
        (3, 1, 0, [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_plan_chunks(
    num_tokens: int, tokens: int, overlap: int, expected: list[tuple[int, int]]
) -> None:
    assert plan_chunks(num_tokens, ChunkPlan(tokens=tokens, overlap=overlap)) == expected


@given(data=st.data(), num_tokens=st.integers(0, 500), tokens=st.integers(1, 60))
def test_plan_chunks_covers_everything_and_repeats_nothing(
    data: st.DataObject, num_tokens: int, tokens: int
) -> None:
    overlap = data.draw(st.integers(0, tokens - 1))
    spans = plan_chunks(num_tokens, ChunkPlan(tokens=tokens, overlap=overlap))
    covered = {token for start, end in spans for token in range(start, end)}
    assert covered == set(range(num_tokens))
    assert all(span.end - span.start == tokens for span in spans[:-1])
    for before, after in pairwise(spans):
        assert after.start == before.start + tokens - overlap
        assert after.end > before.end


@pytest.mark.parametrize(
    ("tokens", "overlap", "param"),
    [
        (0, 0, "chunking.tokens"),
        (-5, 0, "chunking.tokens"),
        (4, 4, "chunking.overlap"),
        (4, -1, "chunking.overlap"),
    ],
)
def test_impossible_plans_are_refused(tokens: int, overlap: int, param: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        plan_chunks(10, ChunkPlan(tokens=tokens, overlap=overlap))
    assert caught.value.code == "invalid_chunking"
    assert caught.value.param == param


def test_chunk_spans_of_a_text(minilm_folder: Path) -> None:
    text = "naïve 😀 café, 日本 unbelievabilities end"
    tokenizer = TextTokenizer.from_folder(minilm_folder)
    encoded = tokenizer.encode_batch([text], with_offsets=True)[0]
    chunks = chunk_spans(encoded, ChunkPlan(tokens=3))
    assert chunks[0].tokens == (1, 4)
    assert [text[slice(*chunk.characters)] for chunk in chunks[:2]] == ["naïve 😀 café", ", 日本"]
    assert chunks[-1].tokens.end == encoded.num_tokens - 1
    assert chunks[-1].characters.end == len(text)


def test_chunk_spans_of_nothing_and_of_token_ids(minilm_folder: Path) -> None:
    tokenizer = TextTokenizer.from_folder(minilm_folder)
    assert chunk_spans(tokenizer.encode_batch([""])[0], ChunkPlan()) == []
    chunks = chunk_spans(tokenizer.encode_ids([7592, 2088]), ChunkPlan(tokens=1))
    assert [chunk.tokens for chunk in chunks] == [(1, 2), (2, 3)]
    assert all(chunk.characters == (0, 0) for chunk in chunks)
