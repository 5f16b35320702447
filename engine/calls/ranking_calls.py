"""Texts ranked by how well they answer a query.

A text of up to one passage is scored as a whole, a longer one by its best passage.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from engine.calls.document_runs import DocumentRuns
from engine.errors import InvalidInput, LLNError, unknown_name
from engine.execution.documents import prepare_document_steps
from engine.execution.input_checks import (
    check_input,
    check_options,
    check_pools,
    check_token_states,
)
from engine.execution.inputs import PIECE_TEXTS, PreparedText, prepare_steps, token_by_token
from engine.execution.results import accounting, finish_vectors
from engine.model.embedding_model import EmbeddingModel
from engine.platform.turns import beside_others, beside_others_if_many
from engine.scheduling.deadline import Deadline
from engine.scheduling.request import TimedResult
from engine.scheduling.session import Session
from engine.steps import Steps
from engine.types import (
    Accounting,
    ChunkPlan,
    DocumentChunks,
    EmbedOptions,
    RankedText,
    Ranking,
    RankOptions,
    RankScoring,
    Span,
    Vector,
)

PASSAGE_TOKENS = 256
_PASSAGES = ChunkPlan(tokens=PASSAGE_TOKENS)
_QUERY_PROMPTS = ("query",)
_TEXT_PROMPTS = ("document", "passage")
_COSINES_AT_ONCE = 2**22
"""Cosines between tokens of a query and of texts, computed together: 16 MiB."""
_DEFAULTS = RankOptions()
_SCORINGS: tuple[RankScoring, ...] = ("vectors", "tokens")

Timed: TypeAlias = tuple[PreparedText, TimedResult[Vector]]


@dataclass(frozen=True)
class _Asked:
    """One call: who reads, by when, and how queries and texts are read."""

    model: EmbeddingModel
    deadline: Deadline
    options: RankOptions

    @property
    def for_query(self) -> EmbedOptions:
        return self._embed_options(_QUERY_PROMPTS)

    @property
    def for_texts(self) -> EmbedOptions:
        limit = self.options.max_tokens
        return replace(self._embed_options(_TEXT_PROMPTS), max_tokens=limit)

    def _embed_options(self, prompts: Sequence[str]) -> EmbedOptions:
        known = self.model.checkpoint.prompts
        return EmbedOptions(
            prompt_name=next((name for name in prompts if name in known), None),
            truncate=self.options.truncate,
            priority=self.options.priority,
        )


@dataclass(frozen=True)
class _Scored:
    score: float
    passage: Span
    cost: Accounting


class RankingCalls(DocumentRuns):
    async def rank(
        self,
        query: str,
        texts: Sequence[str],
        *,
        model: str | None = None,
        options: RankOptions = _DEFAULTS,
        timeout_s: float | None = None,
    ) -> Ranking:
        """The texts, those that answer the query best first.

        The query and the texts get the model's prompts for queries and for documents or passages,
        where it has them.
        """
        with self._counting_rejections():
            asked = _Asked(self._model(model), Deadline(timeout_s), options)
            self._check_ranking(query, texts, asked)
        prepared = [text async for piece in self._prepared_texts(texts, asked) for text in piece]
        with _named("input[0]", "query"):
            (question,) = await self._read(
                prepare_steps([query], asked.model, asked.for_query),
                asked.deadline,
                characters=len(query),
                is_admitted=True,
            )
        score = self._by_vectors if options.scoring == "vectors" else self._by_tokens
        # One session: a call that has begun is not refused its later parts.
        with self._worker.session() as session:
            cost, scored = await score(session, question, prepared, texts, asked)
        order = sorted(range(len(texts)), key=lambda index: -scored[index].score)
        return Ranking(
            model=asked.model.name,
            scoring=options.scoring,
            texts=tuple(
                RankedText(index=at, score=scored[at].score, passage=scored[at].passage)
                for at in order
            ),
            accountings=(cost, *(one.cost for one in scored)),
        )

    def _check_ranking(self, query: str, texts: Sequence[str], asked: _Asked) -> None:
        if asked.options.scoring not in _SCORINGS:
            raise unknown_name("scoring", asked.options.scoring, _SCORINGS, param="scoring")
        check_pools(asked.model)
        check_options(asked.for_texts, asked.model)
        _check_text(query, "query")
        if not texts:
            raise InvalidInput(
                "texts is empty", code="empty_input", param="texts", limit=1, actual=0
            )
        if len(texts) > self.config.max_inputs:
            raise InvalidInput(
                f"texts holds {len(texts)} texts, the limit is {self.config.max_inputs}",
                code="too_many_inputs",
                param="texts",
                limit=self.config.max_inputs,
                actual=len(texts),
            )
        for index, text in enumerate(texts):
            _check_text(text, f"texts[{index}]")

    async def _prepared_texts(
        self, texts: Sequence[str], asked: _Asked
    ) -> AsyncIterator[list[PreparedText]]:
        for start in range(0, len(texts), PIECE_TEXTS):
            piece = texts[start : start + PIECE_TEXTS]
            yield await self._read(
                _prepare_texts(piece, start, asked),
                asked.deadline,
                characters=sum(map(len, piece)),
                is_admitted=start > 0,
            )

    async def _by_vectors(
        self,
        session: Session[PreparedText, Vector],
        question: PreparedText,
        prepared: Sequence[PreparedText],
        texts: Sequence[str],
        asked: _Asked,
    ) -> tuple[Accounting, list[_Scored]]:
        is_long = [len(text.chunks) > 1 for text in prepared]
        short = [text for text, long in zip(prepared, is_long, strict=True) if not long]
        long_ones = [text for text, long in zip(prepared, is_long, strict=True) if long]
        self._admit_documents(asked.model, long_ones, asked.deadline)
        results = await self._run_all(session, [question, *map(_as_a_whole, short)], asked)
        ready = iter(results[1:])
        wanted = _unit(results[0][1].value)[0]

        def score_long(found: DocumentChunks) -> _Scored:
            scores = [float(chunk.vector @ wanted) for chunk in found.chunks]
            best = int(np.argmax(scores))
            return _Scored(scores[best], found.chunks[best].characters, found.accounting)

        def score_short(text: str) -> _Scored:
            timed = next(ready)
            return _Scored(
                float(_unit(timed[1].value)[0] @ wanted), Span(0, len(text)), accounting(*timed)
            )

        of_long = iter(
            await self._run_documents(
                *(session, asked.model, long_ones, asked.for_texts, asked.deadline), score_long
            )
        )
        scored = await beside_others_if_many(
            lambda: [
                next(of_long) if long else score_short(text)
                for text, long in zip(texts, is_long, strict=True)
            ],
            len(texts),
        )
        return accounting(*results[0]), scored

    async def _by_tokens(
        self,
        session: Session[PreparedText, Vector],
        question: PreparedText,
        prepared: Sequence[PreparedText],
        texts: Sequence[str],
        asked: _Asked,
    ) -> tuple[Accounting, list[_Scored]]:
        """A few texts at a time: their states are large, and no longer needed once scored."""
        with self._counting_rejections(), _named("input", "query"):
            check_token_states(question.num_embedded, self.config)
        [asked_for] = await self._run_all(session, [token_by_token(question)], asked)
        wanted = _unit(asked_for[1].value)
        scored: list[_Scored] = []
        for group in self._within_states(prepared):
            by_token = [token_by_token(text) for text in group]
            for timed in await self._run_all(session, by_token, asked):
                whole = Span(0, len(texts[len(scored)]))
                scored.append(await beside_others(partial(_best_passage, wanted, timed, whole)))
        return accounting(*asked_for), scored

    def _within_states(self, texts: Sequence[PreparedText]) -> Iterator[list[PreparedText]]:
        """Neighbours whose states stay within the limit of a call."""
        group: list[PreparedText] = []
        num_tokens = 0
        for index, text in enumerate(texts):
            with self._counting_rejections(), _named("input", f"texts[{index}]"):
                check_token_states(text.num_embedded, self.config)
            if group and num_tokens + text.num_embedded > self.config.max_token_states:
                yield group
                group, num_tokens = [], 0
            group.append(text)
            num_tokens += text.num_embedded
        yield group

    async def _run_all(
        self, session: Session[PreparedText, Vector], texts: list[PreparedText], asked: _Asked
    ) -> list[Timed]:
        async def pieces() -> AsyncIterator[list[PreparedText]]:
            for start in range(0, len(texts), PIECE_TEXTS):
                yield texts[start : start + PIECE_TEXTS]

        ran, results = await self._run_texts(
            session, asked.model, pieces(), asked.for_texts, asked.deadline
        )
        return list(zip(ran, results, strict=True))


def _check_text(text: object, param: str) -> None:
    if not isinstance(text, str):
        raise InvalidInput(
            f"{param} must be a string, got {type(text).__name__}",
            code="invalid_type",
            param=param,
            actual=type(text).__name__,
        )
    check_input(text, param)


def _prepare_texts(
    texts: Sequence[str], first_index: int, asked: _Asked
) -> Steps[list[PreparedText]]:
    found = []
    for index, text in enumerate(texts, first_index):
        with _named("text", f"texts[{index}]"):
            found.append(
                (yield from prepare_document_steps(text, asked.model, asked.for_texts, _PASSAGES))
            )
    return found


def _as_a_whole(text: PreparedText) -> PreparedText:
    """A text of one passage is read once."""
    return replace(text, spans=text.spans[:1], chunks=(), alone=0.0, opening=0.0)


def _best_passage(wanted: Vector, timed: Timed, whole: Span) -> _Scored:
    """Scores a text by its token states. `wanted` are the query's, [tokens, dim]."""
    text, result = timed
    states = _unit(result.value)
    is_long = len(text.chunks) > 1
    passages = [chunk.tokens for chunk in text.chunks] if is_long else [Span(0, len(states))]
    sums = np.zeros(len(passages))
    step = max(1, _COSINES_AT_ONCE // len(states))
    for start in range(0, len(wanted), step):
        cosines = wanted[start : start + step] @ states.T  # [some of the query, text's tokens]
        sums += [cosines[:, tokens.start : tokens.end].max(1).sum() for tokens in passages]
    best = int(np.argmax(sums))
    characters = text.chunks[best].characters if is_long else whole
    return _Scored(float(sums[best] / len(wanted)), characters, accounting(*timed))


def _unit(vectors: Vector) -> Vector:
    return finish_vectors(vectors, EmbedOptions())


@contextmanager
def _named(old: str, new: str) -> Iterator[None]:
    """Makes errors raised inside call a text by its place in this call."""
    try:
        yield
    except LLNError as error:
        if error.param != old:
            raise
        raise error.with_param(new) from error
