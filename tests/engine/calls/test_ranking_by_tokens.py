"""Scores by token states: of the whole query at once, or of parts of it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from engine.calls import ranking_calls
from engine.calls.ranking_calls import _best_passage
from engine.execution.inputs import PreparedText
from engine.scheduling.request import TimedResult
from engine.text.chunking import ChunkSpan
from engine.types import Span


def unit(rng: np.random.Generator, count: int) -> np.ndarray:
    rows = rng.standard_normal((count, 16)).astype(np.float32)
    found: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return found


@pytest.mark.parametrize("at_once", [1, 100, 2**22])
@pytest.mark.parametrize("ends", [[], [0, 20, 37]], ids=["short", "long"])
def test_the_mean_over_the_query_of_the_best_cosine(
    monkeypatch: pytest.MonkeyPatch, at_once: int, ends: list[int]
) -> None:
    monkeypatch.setattr(ranking_calls, "_COSINES_AT_ONCE", at_once)
    rng = np.random.default_rng(0)
    query, states = unit(rng, 11), unit(rng, 37)
    passages = [Span(*pair) for pair in pairwise(ends)] or [Span(0, 37)]
    text = PreparedText(
        ids=np.zeros(37, np.int32),
        spans=(Span(0, 37),),
        chunks=tuple(ChunkSpan(span, Span(span.start, span.end)) for span in passages),
        num_tokens=37,
        dropped=None,
    )
    cosines = query.astype(np.float64) @ states.T
    expected = [cosines[:, span.start : span.end].max(1).mean() for span in passages]
    found = _best_passage(query, (text, TimedResult(states, 0.0, 0.0)), Span(0, 99))
    assert found.score == pytest.approx(max(expected), abs=1e-6)
    best = passages[int(np.argmax(expected))]
    assert found.passage == (best if ends else Span(0, 99))
