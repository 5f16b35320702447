"""Answers that order or score texts by a query."""

from __future__ import annotations

from typing import Literal

from pydantic import RootModel

from engine.types import RankScoring
from service.http.schemas.responses.base import Answer, SpanValue


class RankItem(Answer):
    """`passage` are the characters that the text was scored by: of a short text, all."""

    index: int
    text: str | None = None
    score: float
    passage: SpanValue


class RankList(RootModel[list[RankItem]]):
    """The texts, the best first."""


class ScoreList(RootModel[list[float]]):
    """A score for each text."""


class RankedDocumentText(Answer):
    text: str


class RankResult(Answer):
    """`score` is from -1 to 1, `relevance_score` the same from 0 to 1. `passage` are the characters
    that the document was scored by: of a short document, all."""

    index: int
    relevance_score: float
    score: float
    passage: SpanValue
    document: RankedDocumentText | None = None


class RankUsage(Answer):
    total_tokens: int


class RankAnswer(Answer):
    """The documents, the best first, and how they were scored."""

    object: Literal["list"]
    model: str
    scoring: RankScoring
    results: list[RankResult]
    usage: RankUsage
