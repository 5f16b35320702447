"""Segments whose bounds follow a document's content."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from time import perf_counter

import numpy as np
import pytest

from engine.model.embedding_model import EmbeddingModel
from engine.text.segments import (
    _KINDS_OF_ENDS,
    LEAST_TOKENS,
    MOST_TOKENS,
    Segment,
    ends_in,
    key_matches,
    key_of,
    segments_of,
)
from engine.text.tokenizer import TextTokenizer


@pytest.fixture(scope="module")
def tokenizer(default_model: EmbeddingModel) -> TextTokenizer:
    return default_model.tokenizer


@pytest.fixture(scope="module")
def text(long_text: str) -> str:
    return long_text[:60_000]


def found(text: str, tokenizer: TextTokenizer) -> list[Segment]:
    return list(segments_of(text, tokenizer))


@pytest.mark.parametrize("pattern", _KINDS_OF_ENDS, ids=["paragraph", "line", "sentence", "space"])
def test_white_space_at_the_end_is_not_searched(pattern: re.Pattern[str]) -> None:
    """Searching it took time by the square of its length."""
    rng = random.Random(0)
    for _ in range(2_000):
        window = "".join(rng.choices("a. \n\t", weights=(3, 1, 2, 3, 1), k=rng.randrange(30)))
        expected = [match.end() for match in pattern.finditer(window)]
        assert list(ends_in(window, pattern)) == expected, repr(window)
    began_at = perf_counter()
    assert list(ends_in("a" + "\n" * 500_000, pattern)) == []
    assert perf_counter() - began_at < 1


def test_segments_are_the_whole_text_and_its_tokens(text: str, tokenizer: TextTokenizer) -> None:
    segments = found(text, tokenizer)
    assert "".join(text[slice(*one.characters)] for one in segments) == text
    (whole,) = tokenizer.encode_batch([text])
    np.testing.assert_array_equal(np.concatenate([one.ids for one in segments]), whole.content)


def test_segments_have_the_sizes_that_they_should(text: str, tokenizer: TextTokenizer) -> None:
    *others, last = (len(one.ids) for one in found(text, tokenizer))
    assert len(others) > 4
    assert all(LEAST_TOKENS <= count <= MOST_TOKENS for count in others)
    assert last <= MOST_TOKENS


@pytest.mark.parametrize("at", [0, 29_000, 60_000])
def test_an_insertion_changes_the_segments_beside_it(
    text: str, tokenizer: TextTokenizer, at: int
) -> None:
    before = [key_of(text, one) for one in found(text, tokenizer)]
    edited = f"{text[:at]}\n\nA paragraph that is new.\n\n{text[at:]}"
    after = {key_of(edited, one) for one in found(edited, tokenizer)}
    assert sum(key not in after for key in before) <= 2


def test_a_key_matches_where_its_segment_begins(text: str, tokenizer: TextTokenizer) -> None:
    segments = found(text, tokenizer)
    for one in segments:
        key = key_of(text, one)
        assert key_matches(text, one.characters.start, key)
        assert not key_matches(text, one.characters.start + 1, key)
        # The last segment ended because the text did.
        assert key_matches(text + "More.", one.characters.start, key) == (one is not segments[-1])


def unusual() -> Iterator[tuple[str, str]]:
    yield "one long line", "word " * 9_000
    yield "no space at all", "x" * 9_000
    yield "only line breaks", "\n" * 9_000
    yield "short lines", "a line\n" * 4_000
    yield "sentences", "This is a sentence. " * 3_000
    yield "ideographs", "文書を読む。" * 3_000
    yield "one character", "a"


@pytest.mark.parametrize(("kind", "odd"), [pytest.param(*case, id=case[0]) for case in unusual()])
def test_texts_without_paragraphs_are_divided_too(
    kind: str, odd: str, tokenizer: TextTokenizer
) -> None:
    segments = found(odd, tokenizer)
    assert "".join(odd[slice(*one.characters)] for one in segments) == odd
    assert all(len(one.ids) <= MOST_TOKENS for one in segments)
