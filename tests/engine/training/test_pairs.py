"""Pairs of queries and documents or passages, and their batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engine.errors import InvalidInput
from engine.text.tokenizer import TextTokenizer
from engine.training.data import Document
from engine.training.heading_passages import LONGEST_PASSAGE, SHORTEST_PASSAGE, passages_of
from engine.training.pairs import (
    QUERIES_A_DOCUMENT,
    STRETCH_TOKENS,
    PairBatch,
    PairCorpus,
)
from engine.training.token_documents import CUT_TOKENS

if TYPE_CHECKING:
    from engine.model.embedding_model import EmbeddingModel

WORDS = (
    "the", "engine", "reads", "every", "token", "of", "the", "text", "and", "gives", "a", "vector",
)  # fmt: skip


def a_page(number: int) -> Document:
    body = "".join(
        f"Part {part} of {number}\n-----------------\n"
        + " ".join(WORDS[(part + n) % len(WORDS)] for n in range(30 * part + 40))
        + "\n\n"
        for part in range(1, 5)
    )
    return Document(f"page{number}", f"Page {number}", body, f"What is page {number}?")


PAGES = [a_page(number) for number in range(12)]


@pytest.fixture(scope="module")
def tokenizer(default_model: EmbeddingModel) -> TextTokenizer:
    return default_model.tokenizer


@pytest.fixture(scope="module")
def corpus(tokenizer: TextTokenizer) -> PairCorpus:
    return PairCorpus({"pages": PAGES}, tokenizer)


def test_passages_have_no_heading_and_no_title() -> None:
    first, *_, last = passages_of(PAGES[3])
    assert first.query == "Page 3: Part 1 of 3"
    assert "Part" not in first.text
    assert first.text.startswith("engine reads every")
    assert last.query == "Page 3: Part 4 of 3"


@pytest.mark.parametrize(
    ("title", "body"),
    [("", PAGES[0].body), ("Title", "no heading at all"), ("Title", "One\n---\ntext\n\n")],
    ids=["no title", "no headings", "too few"],
)
def test_documents_without_passages(title: str, body: str) -> None:
    assert passages_of(Document("a", title, body)) == []


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ("# Title\nbody one\nbody two", "body one\nbody two"),
        ("A heading\nof two lines\n===\nbody", "body"),
        ("Plain\nbody\n\n---\nmore", "body\n\n---\nmore"),
    ],
    ids=["marked before", "underlined", "a line of marks further below"],
)
def test_text_below_a_heading(section: str, text: str) -> None:
    from engine.training.heading_passages import _below_heading

    assert _below_heading(section) == text


def test_every_query_has_its_document(corpus: PairCorpus, tokenizer: TextTokenizer) -> None:
    batch = corpus.documents(400, 4000, np.random.default_rng(0))
    assert len(batch.queries.spans) == len(batch.documents.spans) == len(batch.targets)
    assert batch.spans == batch.documents.spans
    assert len(batch.documents.ids) <= 4000 + 2 * len(batch.spans)
    for (start, end), owner in zip(batch.queries.spans, batch.owners, strict=True):
        query = tokenizer.encode_batch([PAGES[owner].query])[0].ids
        assert batch.queries.ids[start:end].tolist() == query.tolist()


def test_spans_are_the_passages_of_their_queries(
    corpus: PairCorpus, tokenizer: TextTokenizer
) -> None:
    seen = 0
    for seed in range(6):
        batch = corpus.passages(300, 2000, np.random.default_rng(seed))
        assert batch is not None
        assert len(batch.targets) <= QUERIES_A_DOCUMENT * len(batch.documents.spans)
        for (start, end), place in zip(batch.queries.spans, batch.targets, strict=True):
            span, owner = batch.spans[place], batch.owners[place]
            assert SHORTEST_PASSAGE <= span[1] - span[0] <= LONGEST_PASSAGE
            assert is_own_passage(batch, (start, end), span, owner, tokenizer)
            seen += 1
    assert seen > 30


def is_own_passage(
    batch: PairBatch,
    query: tuple[int, int],
    span: tuple[int, int],
    owner: int,
    tokenizer: TextTokenizer,
) -> bool:
    asked = batch.queries.ids[slice(*query)].tolist()
    found = batch.documents.ids[slice(*span)].tolist()
    for passage in passages_of(PAGES[owner]):
        question, text = tokenizer.encode_batch([passage.query, passage.text])
        if question.ids.tolist() == asked:
            return bool(text.ids[1:-1].tolist()[: len(found)] == found)
    return False


def test_documents_of_passages_begin_with_their_title(
    corpus: PairCorpus, tokenizer: TextTokenizer
) -> None:
    batch = corpus.passages(200, 1500, np.random.default_rng(1))
    assert batch is not None
    title = tokenizer.encode_batch(["Page"])[0].ids[1]
    for start, _ in batch.documents.spans:
        assert int(batch.documents.ids[start + 1]) == title


def test_the_same_seed_draws_the_same_batch(corpus: PairCorpus) -> None:
    one, other = (corpus.passages(200, 1500, np.random.default_rng(5)) for _ in range(2))
    assert one is not None
    assert other is not None
    assert one.documents.ids.tolist() == other.documents.ids.tolist()
    assert one.targets == other.targets


def test_sources_without_pairs_are_rejected(tokenizer: TextTokenizer) -> None:
    with pytest.raises(InvalidInput, match="no source has two documents"):
        PairCorpus({"plain": [Document("a", "", "text"), PAGES[0]]}, tokenizer)


def test_documents_without_a_query_get_a_stretch_cut_out(
    tokenizer: TextTokenizer,
) -> None:
    plain = [Document(str(n), "", f"{page.name} {page.body}") for n, page in enumerate(PAGES)]
    corpus = PairCorpus({"plain": plain}, tokenizer)
    assert not corpus.has_passages
    batch = corpus.documents(1000, 4000, np.random.default_rng(0))
    assert all(is_cut for is_cut in cuts_of(batch, plain, tokenizer))
    short = corpus.documents(34, 400, np.random.default_rng(0))
    assert {end - start for start, end in short.queries.spans} == {18}  # half of 32, and specials


def cuts_of(
    batch: PairBatch, documents: list[Document], tokenizer: TextTokenizer
) -> Iterator[bool]:
    """Whether each query is a stretch that was cut out of its document."""
    for (q0, q1), (d0, d1), owner in zip(
        batch.queries.spans, batch.documents.spans, batch.owners, strict=True
    ):
        query, rest = batch.queries.ids[q0 + 1 : q1 - 1], batch.documents.ids[d0 + 1 : d1 - 1]
        whole = tokenizer.encode_batch([documents[owner].body])[0].content
        together = sorted([*query.tolist(), *rest.tolist()])
        yield len(query) == CUT_TOKENS and together == sorted(whole.tolist())


def test_cut_share_cuts_documents_that_have_queries(
    corpus: PairCorpus, tokenizer: TextTokenizer
) -> None:
    half = corpus.documents(1000, 10**6, np.random.default_rng(0), cut_share=0.5)
    assert 0 < sum(cuts_of(half, PAGES, tokenizer)) < len(PAGES)
    every = corpus.documents(1000, 10**6, np.random.default_rng(0), cut_share=1.0)
    assert all(cuts_of(every, PAGES, tokenizer))
    short = [replace(page, body=" ".join(WORDS)) for page in PAGES]
    too_short = PairCorpus({"short": short, "pages": PAGES}, tokenizer)
    for seed in range(4):
        batch = too_short.documents(1000, 10**6, np.random.default_rng(seed), cut_share=1.0)
        if batch.source == 0:
            assert not any(cuts_of(batch, short, tokenizer))


def test_stretches_stay_in_the_document_they_should_find(corpus: PairCorpus) -> None:
    batch = corpus.documents(300, 2000, np.random.default_rng(0), cut_share=0.5, stretches=3)
    assert batch.stretches is not None
    count = len(batch.documents.spans)
    assert batch.stretch_targets == [number for number in range(count) for _ in range(3)]
    least, most = STRETCH_TOKENS
    for (s0, s1), number in zip(batch.stretches.spans, batch.stretch_targets, strict=True):
        start, end = batch.documents.spans[number]
        stretch = batch.stretches.ids[s0 + 1 : s1 - 1].tolist()
        document = batch.documents.ids[start + 1 : end - 1].tolist()
        assert min(least, len(document)) <= len(stretch) <= most
        assert any(document[at : at + len(stretch)] == stretch for at in range(len(document)))
    assert len({tuple(batch.stretches.ids[s0:s1].tolist()) for s0, s1 in batch.stretches.spans}) > 3
    assert corpus.documents(300, 2000, np.random.default_rng(0)).stretches is None


def test_a_stretch_of_a_short_document_is_the_whole(tokenizer: TextTokenizer) -> None:
    short = [Document(str(n), "", f"{n} {' '.join(WORDS)}", f"q {n}") for n in range(3)]
    batch = PairCorpus({"short": short}, tokenizer).documents(
        100, 100, np.random.default_rng(0), stretches=1
    )
    assert batch.stretches is not None
    assert batch.stretches.ids.tolist() == batch.documents.ids.tolist()


def test_documents_below_the_shortest_are_not_drawn(tokenizer: TextTokenizer) -> None:
    lengths = sorted(len(item.content) for item in tokenizer.encode_batch([p.body for p in PAGES]))
    short = [replace(page, body=" ".join(page.body.split()[:60])) for page in PAGES]
    corpus = PairCorpus({"short": short, "pages": PAGES}, tokenizer)
    for seed in range(6):
        batch = corpus.documents(10**4, 10**4, np.random.default_rng(seed), shortest=lengths[0])
        assert batch.source == 1
        assert min(end - start - 2 for start, end in batch.documents.spans) >= lengths[0]
    corpus.check_documents(lengths[-2])
    with pytest.raises(InvalidInput, match=rf"two documents of at least {10**4} tokens") as caught:
        corpus.check_documents(10**4)
    assert (caught.value.code, caught.value.limit) == ("too_little_text", 10**4)


def test_short_sections_give_no_passages(tokenizer: TextTokenizer) -> None:
    """Short sections give no passages, and the one long section may not be drawn."""
    terse = [
        Document(
            str(n),
            f"Page {n}",
            "".join(f"# Part {part}\n\nTerse {n}.\n\n" for part in range(4)),
            f"q {n}",
        )
        for n in range(6)
    ]
    assert not PairCorpus({"terse": terse}, tokenizer).has_passages
    mixed = [
        Document(one.name, one.title, f"{one.body}# Long\n\n{' '.join(WORDS * 5)}\n", one.query)
        for one in terse
    ]
    corpus = PairCorpus({"mixed": mixed}, tokenizer)
    assert corpus.has_passages
    assert corpus.passages(8, 8, np.random.default_rng(0)) is None  # room for the title alone
    assert corpus.passages(200, 400, np.random.default_rng(0)) is not None


def test_a_text_with_several_queries_is_no_negative_for_itself(tokenizer: TextTokenizer) -> None:
    """The text is once in a batch, and all its vectors are remembered as those of one text."""
    asked = [replace(page, query=f"{page.query} {n}") for page in PAGES for n in range(3)]
    corpus = PairCorpus({"pages": asked}, tokenizer)
    generator = np.random.default_rng(0)
    whole = [corpus.documents(400, 10**6, generator) for _ in range(4)]
    within = [corpus.passages(300, 10**6, generator) for _ in range(4)]
    for batch in whole:
        assert sorted(batch.owners) == list(range(0, len(asked), 3))
    for batch in filter(None, within):
        assert len(batch.documents.spans) == len(PAGES)
    queries = {
        tuple(one.queries.ids[slice(*span)].tolist()) for one in whole for span in one.queries.spans
    }
    assert len(queries) > 2 * len(PAGES)
    with pytest.raises(InvalidInput, match="no source has two documents"):
        PairCorpus({"one text": asked[:3]}, tokenizer)


def test_longest_tokens_read_at_once(corpus: PairCorpus, tokenizer: TextTokenizer) -> None:
    bodies = tokenizer.encode_batch([page.body for page in PAGES])
    assert corpus.longest(4) == max(
        len(one.ids)
        for one in tokenizer.encode_batch(
            [passage.query for page in PAGES for passage in passages_of(page)]
        )
    )
    assert corpus.longest(100) == 100
    assert corpus.longest(10_000) >= max(one.num_tokens for one in bodies)
