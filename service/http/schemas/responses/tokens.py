"""Answers about tokens, and what a text of a given length would take."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, RootModel

from service.http.schemas.responses.base import Answer


class PlanAnswer(Answer):
    """What a text would take here if it ran alone."""

    model: str
    tokens: int
    fits: bool
    path: Literal["packed", "swept"]
    bytes: int
    seconds: float
    tiles: int
    tile_tokens: int
    keeps_projections: bool
    max_tokens: int
    max_bytes: int
    tokens_alone: int
    tokens_read: int
    ranks: int


class TokenizeAnswer(Answer):
    """`offsets` are of characters in the text; special tokens have [0, 0].

    `document` is null unless the request asked to keep the text open.
    """

    model: str
    count: int
    ids: list[int]
    offsets: list[Annotated[list[int], Field(min_length=2, max_length=2)]]
    tokens: list[str]
    document: str | None


class TokenItem(Answer):
    """`start` and `stop` are characters; special tokens have none."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TokenLists(RootModel[list[list[TokenItem]]]):
    """The tokens of each text."""


class TextList(RootModel[list[str]]):
    """A text for each list of ids."""
