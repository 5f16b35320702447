"""The rows of linked passages: what stands around each, long ones, and what is in none."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engine.model.embedding_model import load_model
from engine.text.linked_passages import LinkedRows, linked_rows, num_linked
from engine.text.tokenizer import TextTokenizer
from engine.types import Span

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

PROMPT = np.array([7, 8], np.int32)


@pytest.fixture(scope="module")
def tokenizer(write_checkpoint: WriteCheckpoint) -> TextTokenizer:
    return load_model(str(write_checkpoint("bert"))).tokenizer


def rows_of(
    tokenizer: TextTokenizer, passages: list[tuple[int, int]], *, num_content: int = 200
) -> tuple[LinkedRows, list[int]]:
    """The rows, and the ids of the document."""
    ids = np.arange(100, 100 + num_content, dtype=np.int32)
    document = tokenizer.between_special(np.concatenate([PROMPT, ids]))
    content = Span(tokenizer.num_prefix + 2, len(document) - tokenizer.num_suffix)
    spans = [Span(content.start + start, content.start + end) for start, end in passages]
    rows = linked_rows(document, spans, content, tokenizer, longest=80, prompt=PROMPT)
    return rows, ids.tolist()


def contents(rows: LinkedRows) -> list[list[int]]:
    before, after = rows.around
    return [rows.ids[start + before : end - after].tolist() for start, end in pairwise(rows.bounds)]


def test_every_part_is_a_text_of_its_own(tokenizer: TextTokenizer) -> None:
    rows, ids = rows_of(tokenizer, [(0, 50), (50, 110), (110, 200)])
    assert rows.around == (tokenizer.num_prefix + 2, tokenizer.num_suffix)
    for start, end in pairwise(rows.bounds):
        own = rows.ids[start + rows.around[0] : end - rows.around[1]]
        whole = tokenizer.between_special(np.concatenate([PROMPT, own]))
        assert rows.ids[start:end].tolist() == whole.tolist()
    assert list(chain.from_iterable(contents(rows))) == ids
    assert contents(rows)[0] == ids[:50]


def test_a_long_passage_is_read_in_equal_parts(tokenizer: TextTokenizer) -> None:
    rows, ids = rows_of(tokenizer, [(0, 200)])
    assert [len(part) for part in contents(rows)] == [66, 67, 67]
    assert rows.passages == (Span(0, len(rows.ids)),)
    assert list(chain.from_iterable(contents(rows))) == ids


def test_what_is_in_no_passage_comes_last(tokenizer: TextTokenizer) -> None:
    rows, ids = rows_of(tokenizer, [(150, 180), (20, 60)])
    expected = [ids[150:180], ids[20:60], ids[:20], ids[60:105], ids[105:150], ids[180:]]
    assert contents(rows) == expected
    assert len(rows.passages) == 2
    assert rows.passages[1].start == rows.bounds[1]


def test_passages_that_overlap_are_each_read_whole(tokenizer: TextTokenizer) -> None:
    rows, ids = rows_of(tokenizer, [(0, 70), (40, 110), (80, 200)])
    assert contents(rows)[:2] == [ids[:70], ids[40:110]]
    assert num_linked([Span(0, 70), Span(40, 110), Span(80, 200)], Span(0, 210)) == 270


def test_a_passage_without_tokens_has_its_special_ones(tokenizer: TextTokenizer) -> None:
    rows, _ = rows_of(tokenizer, [(10, 10), (0, 40)])
    assert contents(rows)[0] == []
    assert rows.passages[0] == Span(0, sum(rows.around))
