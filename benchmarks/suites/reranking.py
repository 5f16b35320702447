"""Texts ranked for a query: the cosine of vectors against late interaction over token states."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from benchmarks.questions import (
    Contest,
    QuestionSet,
    Scores,
    document_questions,
    new_corpora,
    passage_questions,
)
from benchmarks.rows import Plan, Row
from benchmarks.workbench import Workbench
from engine.async_engine import AsyncEngine
from engine.calls.ranking_calls import PASSAGE_TOKENS
from engine.types import ChunkPlan, Context, EmbedOptions, Vector

PASSAGES, QUICK_PASSAGES = 60, 20
WHOLE = "cosine of whole texts"
BEST = "cosine of the best passage"
STATES = EmbedOptions(normalize=True)  # of each token
CONTEXTS: tuple[Context, ...] = ("balanced", "late", "alone")

States: TypeAlias = list[Vector]  # of each text, [tokens, dim]


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    yield from asyncio.run(_measure(bench, plan))


async def _measure(bench: Workbench, plan: Plan) -> list[Row]:
    passages = Contest(WHOLE)
    by_paragraph, by_title = Contest(_best("balanced")), Contest(_best("balanced"))
    model = bench.lln_diag.model
    async with AsyncEngine([model], config=model.config) as engine:
        for corpus in new_corpora(plan):
            short = passage_questions(corpus, QUICK_PASSAGES if plan.quick else PASSAGES)
            passages.add(short, await _scores_of_short(engine, short))
            paragraphs, titles = document_questions(corpus, model)
            texts = await LongTexts.read(engine, paragraphs.texts)
            by_paragraph.add(paragraphs, await texts.scores(engine, paragraphs))
            by_title.add(titles, await texts.scores(engine, titles))
    return [
        *passages.rows("passages, by title and heading"),
        *by_paragraph.rows("documents, by a paragraph"),
        *by_title.rows("documents, by their title"),
    ]


def _best(context: Context) -> str:
    return f"{BEST}, {context}"


async def _scores_of_short(engine: AsyncEngine, questions: QuestionSet) -> dict[str, Scores]:
    queries = await _vectors(engine, questions.queries)
    texts = await _vectors(engine, questions.texts)
    asked = [state async for state in _states(engine, questions.queries)]
    late = [
        [_interaction(query, state) for query in asked]
        async for state in _states(engine, questions.texts)
    ]
    cosines, interactions = queries @ texts.T, np.array(late, np.float32).T
    return {
        WHOLE: cosines,
        "late interaction": interactions,
        "mean of both": (cosines + interactions) / 2,
    }


class LongTexts:
    """Documents as vectors and token states, read once for any number of questions."""

    def __init__(self, whole: Vector, chunks: dict[Context, States], states: States) -> None:
        self._whole = whole
        self._chunks = chunks
        self._states = states

    @classmethod
    async def read(cls, engine: AsyncEngine, texts: Sequence[str]) -> LongTexts:
        whole: list[Vector] = []
        chunks: dict[Context, States] = {}
        for context in CONTEXTS:
            whole.clear()
            for text in texts:
                plan = ChunkPlan(tokens=PASSAGE_TOKENS, context=context)
                found = await engine.embed_document(text, chunks=plan)
                whole.append(found.vector)
                chunks.setdefault(context, []).append(
                    np.stack([chunk.vector for chunk in found.chunks])
                )
        return cls(np.stack(whole), chunks, [state async for state in _states(engine, texts)])

    async def scores(self, engine: AsyncEngine, questions: QuestionSet) -> dict[str, Scores]:
        queries = await _vectors(engine, questions.queries)
        asked = [state async for state in _states(engine, questions.queries)]
        best = {
            _best(context): np.stack([(queries @ one.T).max(1) for one in chunks], axis=1)
            for context, chunks in self._chunks.items()
        }
        within = [[_best_interaction(query, text) for text in self._states] for query in asked]
        anywhere = [[_interaction(query, text) for text in self._states] for query in asked]
        interactions = np.array(within, np.float32)
        return {
            WHOLE: queries @ self._whole.T,
            **best,
            "late interaction, best passage": interactions,
            "late interaction, whole text": np.array(anywhere, np.float32),
            "mean of balanced and interaction": (best[_best("balanced")] + interactions) / 2,
        }


async def _vectors(engine: AsyncEngine, texts: Sequence[str]) -> Vector:
    return np.stack([found.vector for found in await engine.embed(texts)])


async def _states(engine: AsyncEngine, texts: Sequence[str]) -> AsyncIterator[Vector]:
    for text in texts:
        [found] = await engine.embed_tokens([text], options=STATES)
        yield found.vector


def _interaction(query: Vector, text: Vector) -> float:
    """The mean over the query's tokens of the best cosine with a token of the text."""
    return float((query @ text.T).max(1).mean())


def _best_interaction(query: Vector, text: Vector) -> float:
    cosines = query @ text.T
    return max(
        float(cosines[:, start : start + PASSAGE_TOKENS].max(1).mean())
        for start in range(0, len(text), PASSAGE_TOKENS)
    )
