"""The whole evaluation of a model against the softmax model it was made from, as one document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import torch

from engine.adapt.batches import TokenCorpus
from engine.adapt.corpora import Corpus, available
from engine.adapt.documents import fingerprint
from engine.adapt.evaluate import (
    Scorer,
    as_rows,
    bm25_scores,
    fidelity_at,
    recall_by_position,
    retrieval_on,
)
from engine.adapt.evaluate_passages import headed_documents, passage_retrieval_on
from engine.adapt.held_out import LongDocuments, held_out_part, long_documents
from engine.errors import InvalidInput
from engine.model.embedding_model import EmbeddingModel

_HAS_BM25 = "rank_bm25"

Report: TypeAlias = dict[str, Any]
"""What can be written as JSON."""


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    corpora: tuple[str, ...] = ()  # all whose packages are installed
    lengths: tuple[int, ...] = (64, 128, 256, 512, 2048, 8192, 16_384)
    texts: int = 200  # of each length; fewer where they are long
    long: LongDocuments = LongDocuments()  # noqa: RUF009 - frozen
    passage_tokens: int = 60_000  # of each corpus's headed documents, for passages
    planted_documents: int = 100  # of this length, for recall by position
    planted_length: int = 2048
    window: int = 512  # what the teacher reads at once
    without_lln: bool = False  # each model once more, without its LLN branch
    seed: int = 1


def evaluate(
    teacher: EmbeddingModel,
    students: Sequence[EmbeddingModel],
    plan: EvaluationPlan = EvaluationPlan(),
    progress: Callable[[str], None] | None = None,
    keep: Callable[[Report], None] | None = None,
) -> Report:
    """On documents that no training touched; a length that none of them has is left out.

    `keep` is called whenever there is more, with all that was found so far.
    """
    tell = progress or (lambda _: None)
    corpora = [held_out_part(name) for name in plan.corpora or available()]
    if not corpora:
        raise InvalidInput(
            "no corpus is installed; `lln evaluate --help` names their packages",
            code="missing_package",
            param="corpora",
        )
    bodies = [document.body for corpus in corpora for document in corpus.documents]
    tokens = TokenCorpus.of(bodies, teacher.tokenizer)
    named = {Path(student.name).name: student for student in students}
    compared = dict(named)
    if plan.without_lln:
        for name, student in named.items():
            compared[f"{name} without LLN"] = student.with_attention("block_diagonal")
    found: Report = {
        "teacher": teacher.name,
        "weights": teacher.checkpoint.sha256,
        "students": {name: student.info.calibration for name, student in named.items()},
        "torch": torch.__version__,
        "plan": asdict(plan),
        "held_out": {corpus.name: fingerprint(corpus.documents) for corpus in corpora},
    }
    for part, rows in (
        ("fidelity", _fidelity(teacher, named, tokens, plan, tell)),
        ("retrieval", _retrieval(teacher, compared, corpora, plan, tell)),
        ("passages", _passages(teacher, compared, corpora, plan, tell)),
        ("recall_by_position", _recall(named, tokens, plan, tell)),
    ):
        found[part] = []
        for row in rows:
            found[part].append(row)
            if keep is not None:
                keep(found)
    return found


def _fidelity(
    teacher: EmbeddingModel,
    students: Mapping[str, EmbeddingModel],
    tokens: TokenCorpus,
    plan: EvaluationPlan,
    tell: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    for length in plan.lengths:
        tell(f"fidelity at {length} tokens")
        count = max(20, min(plan.texts, 100_000 // length))
        try:
            found = fidelity_at(
                teacher, students, tokens, length, count=count, window=plan.window, seed=plan.seed
            )
        except InvalidInput:
            continue
        yield from (asdict(one) for one in found)


def _recall(
    students: Mapping[str, EmbeddingModel],
    tokens: TokenCorpus,
    plan: EvaluationPlan,
    tell: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    tell("recall by position")
    for name, student in students.items():
        found = recall_by_position(
            student,
            tokens,
            length=plan.planted_length,
            count=plan.planted_documents,
            seed=plan.seed,
        )
        yield from ({"model": name, **asdict(one)} for one in found)


def _retrieval(
    teacher: EmbeddingModel,
    students: Mapping[str, EmbeddingModel],
    corpora: Sequence[Corpus],
    plan: EvaluationPlan,
    tell: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    for corpus in corpora:
        long = long_documents(corpus, teacher, plan.long)
        if len(long.documents) < 2:
            continue
        tell(f"retrieval among {len(long.documents)} documents of {corpus.name}")
        yield from as_rows(retrieval_on(teacher, students, long, window=plan.window, bm25=_bm25()))


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
