"""What every vendor's endpoint does around its own fields: embed, and count what it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from fastapi import Depends

from engine.async_engine import AsyncEngine
from engine.types import Accounting, Embedding, EmbedOptions, ModelInfo, TextInput
from service.errors import report_names
from service.http.dependencies import Engine, Record, TimeoutS
from service.http.dialects.dropped import dropped_headers
from service.http.json_response import server_timing

Names: TypeAlias = Mapping[str, str | Sequence[str]]
"""A vendor's names for the engine's parameters: see `report_names`."""


@dataclass(frozen=True)
class Embedded:
    found: list[Embedding]

    @property
    def costs(self) -> list[Accounting]:
        return [embedding.accounting for embedding in self.found]

    @property
    def tokens(self) -> int:
        return sum(cost.tokens_embedded for cost in self.costs)

    @property
    def headers(self) -> dict[str, str]:
        return server_timing(self.costs) | dropped_headers(self.costs)


class DialectCall:
    """One request in a vendor's words."""

    def __init__(self, engine: Engine, timeout_s: TimeoutS, record: Record) -> None:
        self.engine: AsyncEngine = engine
        self.timeout_s: float = timeout_s
        self.record = record

    def resolve(self, model: str | None) -> ModelInfo:
        info = self.engine.resolve(model)
        self.record.model = info.name
        return info

    async def embed(
        self,
        inputs: Sequence[TextInput],
        model: str | None,
        options: EmbedOptions,
        names: Names,
        *,
        each_token: bool = False,
    ) -> Embedded:
        """A vector for each input, or the states of all its tokens."""
        embed = self.engine.embed_tokens if each_token else self.engine.embed
        with report_names(names):
            found = await embed(inputs, model=model, options=options, timeout_s=self.timeout_s)
        embedded = Embedded(found)
        self.record.tokens = embedded.tokens
        return embedded


Call: TypeAlias = Annotated[DialectCall, Depends()]
