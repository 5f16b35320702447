"""Answers from an indexed folder."""

from __future__ import annotations

from typing import Literal

from service.http.schemas.responses.base import Answer, SpanValue, Usage


class FoundPassage(Answer):
    """A passage of an indexed file. Ranks count from 1; null if that list does not have it."""

    file: str
    title: str | None
    headings: list[str]
    page: int | None
    characters: SpanValue
    text: str
    score: float
    words_rank: int | None
    vectors_rank: int | None
    similarity: float | None


class SearchAnswer(Answer):
    object: Literal["list"]
    data: list[FoundPassage]
    usage: Usage


class IndexFacts(Answer):
    folder: str
    model: str
    files: int
    unreadable: int
    passages: int
    tokens: int


class IndexAnswer(Answer):
    object: Literal["index"]
    index: IndexFacts | None


class IndexedDocument(Answer):
    object: Literal["document"]
    file: str
    title: str | None
    text: str
