"""The body of a request to rank documents, as Jina, Cohere and others share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from pydantic import Field

from engine.errors import InvalidInput
from engine.types import RankOptions
from service.http.schemas.fields import AtLeastOne, Body, Scoring, Text


class DocumentText(Body):
    text: Text


DocumentValue: TypeAlias = Text | DocumentText


def texts_of(documents: Sequence[DocumentValue]) -> list[str]:
    return [one if isinstance(one, str) else one.text for one in documents]


class RankBody(Body):
    query: Text
    documents: list[DocumentValue]
    model: str | None = Field(None, description="One of GET /v1/models; the first when absent.")
    top_n: AtLeastOne | None = Field(None, description="Answer only this many, the best ones.")
    return_documents: bool = Field(False, description="Repeat the documents in the answer.")
    scoring: Scoring = RankOptions.scoring
    truncate: Literal["error", "start", "end"] = RankOptions.truncate
    priority: Literal["normal", "background"] = RankOptions.priority

    @property
    def texts(self) -> list[str]:
        return texts_of(self.documents)

    def options(self) -> RankOptions:
        return RankOptions(scoring=self.scoring, truncate=self.truncate, priority=self.priority)

    def check(self) -> None:
        """The engine knows of no `top_n`."""
        if self.top_n is not None and self.top_n < 1:
            raise InvalidInput(
                f"top_n must be at least 1, got {self.top_n}",
                code="invalid_top_n",
                param="top_n",
                limit=1,
                actual=self.top_n,
            )
