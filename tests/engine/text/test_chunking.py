"""plan_chunks and chunk_spans: every token in a chunk, every chunk with its characters."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidInput
from engine.text.chunking import MAX_CHUNKS, ChunkSpan, Source, chunk_spans, plan_chunks
from engine.text.tokenizer import TextTokenizer
from engine.types import Chunking, ChunkPlan, HeadingPlan, SentencePlan, Span, SpanPlan

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint


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
    assert chunk_spans(tokenizer.encode_batch([" \n"])[0], SentencePlan(), Source(" \n", 2)) == []
    chunks = chunk_spans(tokenizer.encode_ids([7592, 2088]), ChunkPlan(tokens=1))
    assert [chunk.tokens for chunk in chunks] == [(1, 2), (2, 3)]
    assert all(chunk.characters == (0, 0) for chunk in chunks)


@pytest.fixture(scope="module")
def minilm(minilm_folder: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(minilm_folder)


def chunks_of(tokenizer: TextTokenizer, text: str, plan: Chunking) -> list[ChunkSpan]:
    encoded = tokenizer.encode_batch([text], with_offsets=True)[0]
    return chunk_spans(encoded, plan, Source(text, len(text)))


def texts(text: str, chunks: list[ChunkSpan]) -> list[str]:
    return [text[slice(*chunk.characters)] for chunk in chunks]


SENTENCES = "One two. Three four five! 六七。 \n\n \0 Eight 😀."


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (SentencePlan(), ["One two.", "Three four five!", "六七。", "\0 Eight 😀."]),
        (SentencePlan(min_tokens=4), ["One two. Three four five!", "六七。 \n\n \0 Eight 😀."]),
        (
            SentencePlan(max_tokens=2),
            ["One", "two.", "Three four", "five!", "六", "七。", "\0 Eight", "😀."],
        ),
        (
            SentencePlan(min_tokens=7, max_tokens=7),
            ["One two. Three four five!", "六七。 \n\n \0 Eight 😀."],
        ),
    ],
)
def test_sentences_by_size(minilm: TextTokenizer, plan: SentencePlan, expected: list[str]) -> None:
    assert texts(SENTENCES, chunks_of(minilm, SENTENCES, plan)) == expected


def test_sections_have_their_headings_and_are_split_between_sentences(
    minilm: TextTokenizer,
) -> None:
    text = "Before.\n\n# One\n\nFirst words here. Second words here.\n\n## Two\n\nEnd 😀"
    chunks = chunks_of(minilm, text, HeadingPlan(max_tokens=7))
    assert texts(text, chunks) == [
        "Before.",
        "# One\n\nFirst words here.",
        "Second words here.",
        "## Two\n\nEnd 😀",
    ]
    assert [chunk.headings for chunk in chunks] == [(), ("One",), ("One",), ("One", "Two")]


def test_spans_of_the_callers_own(minilm: TextTokenizer) -> None:
    text = "naïve 😀 unbelievabilities"
    spans = (Span(8, 12), Span(0, 7), Span(6, 7), Span(3, 4))
    chunks = chunks_of(minilm, text, SpanPlan(spans=spans))
    assert tuple(chunk.characters for chunk in chunks) == spans
    assert [chunk.tokens for chunk in chunks[1:]] == [(1, 3), (2, 3), (1, 2)]
    assert chunks[0].tokens.start == 3


@pytest.mark.parametrize(
    ("spans", "code", "param"),
    [
        ([(0, 1), (1, 1)], "invalid_chunking", "chunking.spans[1]"),
        ([(2, 1)], "invalid_chunking", "chunking.spans[0]"),
        ([(-1, 1)], "invalid_chunking", "chunking.spans[0]"),
        ([(0, 5)], "invalid_chunking", "chunking.spans[0]"),
        ([(0, 1), (1, 3)], "empty_chunk", "chunking.spans[1]"),
        ([(0, 1)] * (MAX_CHUNKS + 1), "too_many_chunks", "chunking"),
    ],
)
def test_spans_that_are_refused(
    minilm: TextTokenizer, spans: list[tuple[int, int]], code: str, param: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        chunks_of(minilm, "a  b", SpanPlan(spans=tuple(Span(*span) for span in spans)))
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize(
    ("plan", "param"),
    [
        (SentencePlan(min_tokens=0), "chunking.min_tokens"),
        (SentencePlan(min_tokens=5, max_tokens=4), "chunking.min_tokens"),
        (SentencePlan(max_tokens=0), "chunking.max_tokens"),
        (HeadingPlan(max_tokens=0), "chunking.max_tokens"),
        (HeadingPlan(format="latex"), "chunking.format"),  # type: ignore[arg-type]
    ],
)
def test_impossible_sizes_are_refused(minilm: TextTokenizer, plan: Chunking, param: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        chunks_of(minilm, "text", plan)
    assert (caught.value.code, caught.value.param) == ("invalid_chunking", param)


def test_too_many_chunks_are_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        plan_chunks(1_000_000, ChunkPlan(tokens=8))
    assert (caught.value.code, caught.value.limit) == ("too_many_chunks", MAX_CHUNKS)
    assert caught.value.actual == 125_000


PARTS = st.sampled_from(
    [
        *(
            "One",
            "two.",
            "# a",
            "===",
            "NAME",
            "<h1>x</h1>",
            "Mr.",
            " ",
            "  ",
            "\n",
            "\n\n",
            "六。",
        ),
        *(
            "é",
            "e\u0301",
            "\u0301",
            "👩\u200d👧",
            "\0",
            "\ufeff",
            "שלום",
            "六。",
            "unbelievabilities",
        ),
    ]
)


@given(
    text=st.lists(PARTS, max_size=30).map("".join),
    sizes=st.tuples(st.integers(1, 9), st.integers(0, 9)),
    by_heading=st.booleans(),
)
def test_every_token_is_in_one_chunk_and_every_chunk_has_its_characters(
    minilm: TextTokenizer, text: str, sizes: tuple[int, int], by_heading: bool
) -> None:
    least, more = sizes
    max_tokens = least + more
    plan: Chunking = SentencePlan(min_tokens=least, max_tokens=max_tokens)
    if by_heading:
        plan = HeadingPlan(max_tokens=max_tokens)
    encoded = minilm.encode_batch([text], with_offsets=True)[0]
    chunks = chunk_spans(encoded, plan, Source(text, len(text)))
    bounds = [1, *(chunk.tokens.end for chunk in chunks)]
    assert [chunk.tokens.start for chunk in chunks] == bounds[:-1]
    assert bounds[-1] == encoded.num_tokens - 1
    end = 0
    for chunk in chunks:
        assert 1 <= chunk.tokens.end - chunk.tokens.start <= max_tokens
        assert end <= chunk.characters.start < chunk.characters.end <= len(text)
        starts, ends = encoded.offsets[slice(*chunk.tokens)].T
        assert chunk.characters.start <= starts.min()
        assert ends.max() <= chunk.characters.end
        end = chunk.characters.end


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "modernbert"])
@pytest.mark.parametrize("plan", [SentencePlan(), HeadingPlan()], ids=["sentences", "headings"])
@pytest.mark.parametrize(
    "text",
    [
        "\n \n" * 400,
        "Hello world." + "\n \n" * 400 + "Next one.",
        "\n \n" * 400 + "Hello world.",
        " \n" * 300 + "# Title\nbody\n",
    ],
    ids=["alone", "between", "before", "before a heading"],
)
def test_white_space_that_has_tokens_of_its_own(
    family: str, plan: Chunking, text: str, write_checkpoint: WriteCheckpoint
) -> None:
    tokenizer = TextTokenizer.from_folder(write_checkpoint(family))
    chunks = chunks_of(tokenizer, text, plan)
    for one, other in pairwise(chunks):
        assert one.tokens.end == other.tokens.start
    assert chunks
    assert all(0 <= chunk.characters.start < chunk.characters.end for chunk in chunks)
