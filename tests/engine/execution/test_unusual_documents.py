"""Documents of broken bytes, half characters, one endless word, or nothing but marks."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.async_engine import AsyncEngine
from engine.errors import InvalidInput
from engine.execution.documents import MAX_UNCUT_CHARACTERS
from engine.model.embedding_model import EmbeddingModel
from engine.text.unicode import Utf8Reader
from engine.types import (
    ChunkPlan,
    HeadingPlan,
    SentencePlan,
)
from tests.engine.in_pieces import MEGABYTE, feed_all, read, stream
from tests.engine.serving import serve


@pytest.mark.parametrize(
    ("pieces", "position"),
    [
        ([b"ab\xff"], 2),
        ([b"a\xe6", b"\x97", b"x"], 1),
        ([b"a\xf0\x9f", b"\x98"], 1),
        ([b"\xc0"], 0),
    ],
)
def test_broken_utf8_is_named_by_its_byte(
    shallow_model: EmbeddingModel, pieces: list[bytes], position: int
) -> None:
    async def work(engine: AsyncEngine) -> None:
        document = engine.open_document()
        with pytest.raises(InvalidInput) as caught:
            await feed_all(document, pieces)
        assert (caught.value.code, caught.value.actual) == ("invalid_utf8", position)

    serve([shallow_model], work)


@given(text=st.text(max_size=60), size=st.integers(1, 7))
def test_utf8_in_pieces(text: str, size: int) -> None:
    data = text.encode()
    reader = Utf8Reader()
    parts = [reader.read(data[start : start + size]) for start in range(0, len(data), size)]
    reader.finish()
    assert "".join(parts) == text


def test_strings_may_come_in_pieces_but_not_half_characters(
    shallow_model: EmbeddingModel,
) -> None:
    async def work(engine: AsyncEngine) -> None:
        document = engine.open_document()
        await document.feed("fine")
        with pytest.raises(InvalidInput) as caught:
            await document.feed("ab\ud800")
        assert (caught.value.code, caught.value.actual) == ("invalid_unicode", "U+D800")

    serve([shallow_model], work)


def test_64_megabytes_without_a_space_are_one_unknown_word(shallow_model: EmbeddingModel) -> None:
    started_at = perf_counter()
    pieces = ["go " + "x" * MEGABYTE, *(["x" * MEGABYTE] * 63), " on"]
    found = read(shallow_model, pieces, plan=ChunkPlan(tokens=1))
    assert shallow_model.tokenizer.tokens_of(found.ids)[1:-1] == ("go", "[UNK]", "on")
    assert found.chunks[1].characters == (3, 3 + 64 * MEGABYTE)
    assert perf_counter() - started_at < 20


@pytest.mark.parametrize(
    ("text", "num_tokens"),
    [
        ("word", 3),
        (" \n\t ", 2),
        ("\0\0", 2),
        ("a\0b", 3),
        ("\u0301\u0301", 2),
        ("😀" * 200, 3),
        ("👩\u200d👩\u200d👧", 3),
        ("e\u0301", 3),
        ("שלום عالم", None),
        ("日本" * 3, 8),
        ("\ufeff", 2),
    ],
)
def test_unusual_documents_are_embedded(
    shallow_model: EmbeddingModel, text: str, num_tokens: int | None
) -> None:
    async def work(engine: AsyncEngine) -> None:
        for plan in (ChunkPlan(), SentencePlan(), HeadingPlan()):
            found = await stream(engine, text, 1, chunks=plan)
            assert np.isfinite(found.vector).all()
            assert num_tokens in (None, found.tokens)
            assert len(found.chunks) == (0 if found.tokens == 2 else 1)

    serve([shallow_model], work)


def test_text_that_cannot_be_cut_is_refused_in_time(shallow_model: EmbeddingModel) -> None:
    """Marks that the tokenizer drops never end a word."""
    with pytest.raises(InvalidInput) as caught:
        read(shallow_model, ["a", *["\u0301" * (MEGABYTE // 2)] * 9])
    assert (caught.value.code, caught.value.limit) == ("uncuttable_text", MAX_UNCUT_CHARACTERS)
