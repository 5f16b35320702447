"""Answers about one document's attention: maps, topics and structure."""

from __future__ import annotations

from typing import Literal

from service.http.schemas.responses.base import Answer, SpanValue


class LinkItem(Answer):
    """One entry of the attention matrix."""

    query: int
    key: int
    weight: float


class TopicTokenItem(Answer):
    """`characters` is null for special tokens."""

    index: int
    token: str
    characters: SpanValue | None
    weight: float


class TopicItem(Answer):
    """One channel of an LLN head: the tokens it attends to, and those that attend through it."""

    channel: int
    share: float
    effective_tokens: float
    tokens: list[TopicTokenItem]
    users: list[TopicTokenItem]


class AttentionMapAnswer(Answer):
    """Cell [r][c] holds the queries and keys between the edges r, r + 1 and c, c + 1.

    `topics` is null if none were requested or the head has no channels.
    """

    object: Literal["attention_map"]
    model: str
    document: str
    tokens: int
    layer: int
    head: int
    attention: str
    rows: SpanValue
    columns: SpanValue
    row_edges: list[int]
    column_edges: list[int]
    statistic: Literal["mass", "mean", "sum"]
    values: list[list[float]] | str
    links: list[LinkItem]
    topics: list[TopicItem] | None


class SegmentItem(Answer):
    """A part of the document and its own parts. `begins`: with the text, at one of its headings, or
    where the states before and after have least in common (vectors)."""

    level: int
    tokens: SpanValue
    characters: SpanValue
    begins: Literal["text", "heading", "vectors"]
    children: list[SegmentItem]


class StructureAnswer(Answer):
    """`scales` are the tokens of a typical segment of each level; `layer` is the layer whose input
    was compared."""

    object: Literal["structure"]
    model: str
    document: str
    tokens: int
    layer: int
    scales: list[int]
    segments: list[SegmentItem]
