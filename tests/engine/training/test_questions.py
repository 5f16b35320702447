"""Questions about passages, and their batches: every answer is where the batch says it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from engine.checkpoint.calibration import Calibration
from engine.errors import InvalidInput
from engine.model.embedding_model import EmbeddingModel
from engine.text.chunking import OPENING_TOKENS
from engine.text.tokenizer import TextTokenizer
from engine.training.data import Document
from engine.training.heading_passages import LONGEST_PASSAGE, SHORTEST_PASSAGE, passages_of
from engine.training.led_passages import led_passages
from engine.training.losses import any_loss, retrieval_loss
from engine.training.paragraphs import Paragraphs
from engine.training.questions import (
    PARAGRAPHS_A_DOCUMENT,
    QUESTIONS_A_DOCUMENT,
    QuestionBatch,
    QuestionCorpus,
)
from engine.training.recipe import Stage, TrainingPlan
from engine.training.student import Student, StudentPlan
from engine.training.token_corpus import Batch, TokenCorpus
from engine.training.trainer import Trainer
from engine.training.training_corpora import TrainingCorpora

STAGE = Stage(
    kind="questions",
    steps=16,
    lengths=(400,),
    batch_tokens=1200,
    rates={"scalars": 2e-2, "maps": 2e-2, "encoder": 2e-3},
    shortest=120,
    title_share=0.5,
    fidelity_share=0.1,
)

WORDS = ("river", "stone", "lamp", "harbour", "winter", "letter", "garden", "engine", "bread")


def prose(seed: int, sentences: int) -> str:
    rng = np.random.default_rng(seed)
    return " ".join(
        f"The {' '.join(rng.choice(WORDS, 7))} of number {seed}." for _ in range(sentences)
    )


def headed(number: int) -> Document:
    body = "".join(
        f"# Part {part} of {number}\n\n"
        + "\n\n".join(prose(100 * number + 10 * part + nth, 5) for nth in range(4))
        + "\n\n"
        for part in range(1, 6)
    )
    return Document(f"headed{number}", f"Book {number}", body)


def unheaded(number: int) -> Document:
    body = "\n\n".join(prose(7000 + 100 * number + nth, 7) for nth in range(12))
    return Document(f"plain{number}", f"Tale {number}", body)


HEADED = [headed(number) for number in range(5)]
UNHEADED = [unheaded(number) for number in range(5)]


@pytest.fixture(scope="module")
def tokenizer(default_model: EmbeddingModel) -> TextTokenizer:
    return default_model.tokenizer


def text_of(batch: Batch, tokenizer: TextTokenizer) -> list[str]:
    return [
        " ".join(tokenizer.tokens_of(batch.ids[start + 1 : end - 1].numpy())).replace(" ##", "")
        for start, end in batch.spans
    ]


def drawn(
    documents: list[Document], tokenizer: TextTokenizer, seed: int, length: int = 900
) -> QuestionBatch:
    corpus = QuestionCorpus({"texts": documents}, tokenizer)
    return corpus.batch(length, 3000, 200, np.random.default_rng(seed))


@pytest.mark.parametrize("documents", [HEADED, UNHEADED], ids=["headings", "first sentences"])
def test_spans_are_titles_and_passages_in_place(
    documents: list[Document], tokenizer: TextTokenizer
) -> None:
    batch = drawn(documents, tokenizer, seed=3)
    assert len(batch.spans) == len(batch.owners) == len(batch.alone.spans)
    texts = text_of(batch.alone, tokenizer)
    assert len(batch.titles) == len(batch.documents.spans) > 1
    for number, at in enumerate(batch.titles):
        assert texts[at] in {one.title.lower() for one in documents}
        assert batch.owners[at] == number
    for (start, end), (first, last), owner in zip(
        batch.spans, batch.alone.spans, batch.owners, strict=True
    ):
        assert torch.equal(batch.documents.ids[start:end], batch.alone.ids[first + 1 : last - 1])
        begin, finish = batch.documents.spans[owner]
        assert begin < start < end < finish
    passages = [
        end - start for at, (start, end) in enumerate(batch.spans) if at not in batch.titles
    ]
    assert all(SHORTEST_PASSAGE <= size <= LONGEST_PASSAGE for size in passages)


def test_a_heading_finds_the_passage_below_it(tokenizer: TextTokenizer) -> None:
    sources = {
        passage.query.lower(): passage.text for one in HEADED for passage in passages_of(one)
    }
    assert_answered(drawn(HEADED, tokenizer, seed=1), sources, tokenizer)


def test_a_first_sentence_finds_the_rest(tokenizer: TextTokenizer) -> None:
    sources = {
        passage.query.lower(): passage.text for one in UNHEADED for passage in led_passages(one)
    }
    assert_answered(drawn(UNHEADED, tokenizer, seed=1), sources, tokenizer)


def assert_answered(
    batch: QuestionBatch, sources: dict[str, str], tokenizer: TextTokenizer
) -> None:
    assert batch.questions is not None
    assert 0 < len(batch.targets) <= QUESTIONS_A_DOCUMENT * len(batch.titles)
    alone = text_of(batch.alone, tokenizer)
    answers = {
        text_of(_batch(query, tokenizer), tokenizer)[0]: answer for query, answer in sources.items()
    }
    for question, target in zip(text_of(batch.questions, tokenizer), batch.targets, strict=True):
        whole = text_of(_batch(answers[question], tokenizer), tokenizer)[0]
        # Paragraphs may have been taken out of the answer.
        assert all(word in whole.split() for word in alone[target].split())
        assert f"of number {number_in(alone[target])}" in whole


def number_in(text: str) -> str:
    return text.partition("of number ")[2].split()[0]


def _batch(text: str, tokenizer: TextTokenizer) -> Batch:
    ids = tokenizer.encode_batch([text])[0].ids
    return Batch(torch.from_numpy(np.asarray(ids, dtype=np.int64)), [0, len(ids)])


@pytest.mark.parametrize("documents", [HEADED, UNHEADED], ids=["headings", "first sentences"])
def test_paragraphs_are_not_in_the_document_that_they_ask_for(
    documents: list[Document], tokenizer: TextTokenizer
) -> None:
    batch = drawn(documents, tokenizer, seed=2)
    assert batch.paragraphs is not None
    asked = text_of(batch.paragraphs, tokenizer)
    texts = text_of(batch.documents, tokenizer)
    assert len(asked) == len(batch.sources) <= PARAGRAPHS_A_DOCUMENT * len(texts)
    whole = {one.title.lower(): one.body for one in documents}
    for paragraph, source in zip(asked, batch.sources, strict=True):
        assert paragraph not in texts[source]
        title = " ".join(texts[source].split()[:2])
        assert f"of number {number_in(paragraph)}." in whole[title]


def test_the_same_seed_draws_the_same(tokenizer: TextTokenizer) -> None:
    one, same, other = (drawn(HEADED, tokenizer, seed) for seed in (5, 5, 6))
    assert torch.equal(one.documents.ids, same.documents.ids)
    assert one.targets == same.targets
    assert one.documents.bounds != other.documents.bounds or one.targets != other.targets


@pytest.mark.parametrize("length", [130, 300, 900])
def test_documents_fit_the_length(length: int, tokenizer: TextTokenizer) -> None:
    for seed in range(5):
        batch = drawn(HEADED, tokenizer, seed, length)
        assert all(end - start <= length for start, end in batch.documents.spans)


def test_a_long_title_is_cut_as_it_is_served(tokenizer: TextTokenizer) -> None:
    long = [Document(one.name, " ".join(["word"] * 200), one.body) for one in HEADED]
    batch = drawn(long, tokenizer, seed=0)
    assert {end - start for start, end in (batch.spans[at] for at in batch.titles)} == {
        OPENING_TOKENS
    }


def test_a_repeated_heading_is_not_asked_for(tokenizer: TextTokenizer) -> None:
    body = "".join(f"# Notes\n\n{prose(nth, 12)}\n\n" for nth in range(5))
    documents = [Document(str(n), f"Book {n}", body) for n in range(3)]
    with pytest.raises(InvalidInput, match="no questions within 400 tokens"):
        QuestionCorpus({"texts": documents}, tokenizer).batch(
            400, 900, 100, np.random.default_rng(0)
        )


@pytest.mark.parametrize(
    "documents",
    [
        [],
        [Document("a", "", HEADED[0].body)],
        [Document("a", "\u200b", HEADED[0].body)],
        [Document("a", "Title", prose(1, 2))],
    ],
    ids=["none", "no title", "no words in the title", "too short"],
)
def test_documents_without_questions(documents: list[Document], tokenizer: TextTokenizer) -> None:
    corpus = QuestionCorpus({"texts": documents}, tokenizer)
    with pytest.raises(InvalidInput, match="no titled document of 200 tokens has 3 passages"):
        corpus.check_documents(200)


def test_paragraphs_are_taken_out_of_their_texts() -> None:
    paragraphs = Paragraphs(["a\n\n b \n\nc", "d"])
    assert list(paragraphs.all()) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert paragraphs.taken_out({(0, 1), (1, 0)}) == (["a\n\nc", ""], [["b"], ["d"]])


def test_any_of_the_wanted_may_be_found() -> None:
    queries, candidates = (
        F.normalize(torch.randn(n, 8, generator=torch.Generator().manual_seed(n)), dim=-1)
        for n in (3, 5)
    )
    wanted = torch.zeros(3, 5, dtype=torch.bool)
    wanted[[0, 1, 2], [4, 0, 2]] = True
    one = retrieval_loss(queries, candidates, torch.tensor([4, 0, 2]))
    torch.testing.assert_close(any_loss(queries, candidates, wanted), one)
    wanted[:, 1] = True
    assert any_loss(queries, candidates, wanted) < one
    assert any_loss(queries, candidates, torch.ones_like(wanted)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("plan", "linked"),
    [
        pytest.param(StudentPlan(), False, id="all, late"),
        pytest.param(StudentPlan(), True, id="all, linked"),
        pytest.param(StudentPlan(encoder=False), False, id="LLN alone, late"),
        pytest.param(StudentPlan(without_lln=True), True, id="control, linked"),
    ],
)
def test_they_are_learned(
    plan: StudentPlan,
    linked: bool,
    teacher: EmbeddingModel,
    calibration: Calibration,
    corpus: TokenCorpus,
    tmp_path: Path,
    little_watched: None,
) -> None:
    asked = QuestionCorpus({"texts": HEADED}, teacher.tokenizer)
    training = TrainingPlan(stages=(replace(STAGE, linked=linked),), warmup=1, save_every=100)
    student = Student(teacher, calibration, plan)
    corpora = TrainingCorpora(windows=corpus, questions=asked)
    trainer = Trainer(teacher, student, corpora, training, tmp_path)
    found = [report.parts["retrieval"] for report in trainer.steps()]
    assert mean(found[-6:]) < mean(found[:6])
