"""The bodies of requests about a text's attention."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field

from engine.analysis.diagnosis_plan import FEWEST_ROWS, MAX_QUANTILES, MOST_ROWS
from engine.attention_types import SAMPLED_ROWS, MapOptions
from engine.types import Span
from service.http.json_response import EncodingFormat
from service.http.schemas.fields import AtLeastZero, Body, Whole

Statistic: TypeAlias = Literal["mass", "mean", "sum"]


class TokenSpanBody(Body):
    """A half-open range of tokens."""

    start: Whole
    end: Whole

    def span(self) -> Span:
        return Span(self.start, self.end)


class OpenDocumentBody(Body):
    """A text, or a document that an earlier request opened."""

    text: str | None = None
    document: str | None = Field(None, description="The `document` of an earlier answer.")
    model: str | None = None


class DiagnosticsBody(OpenDocumentBody):
    """What to measure about a text's attention; everything by default."""

    layers: list[AtLeastZero] | None = None
    heads: list[AtLeastZero] | None = None
    instruments: list[str] | None = None
    mode: str = Field(
        "auto",
        description="For quantities that need all pairs of tokens: auto (exact for short texts, "
        "sampled with a stated error beyond), exact (refused beyond a budget), sampled. Some "
        "quantities are estimates in every mode, with their error: softmax's stationary beyond "
        "2,048 tokens (iterated) and, beyond 128 tokens, the eigenvalues beside attention_fisher "
        "(a few rows). spectral_gap (iterated) is one beyond 512 tokens, effective_rank with its "
        "singular values and stable rank beyond 128; in mode exact both beyond 4,096.",
        json_schema_extra={"enum": ["auto", "exact", "sampled"]},
    )
    sampled_rows: Whole = Field(
        SAMPLED_ROWS,
        description=f"Rows read of each head where rows are sampled, {FEWEST_ROWS} to "
        f"{MOST_ROWS:,}. More rows make smaller errors and take longer.",
    )
    seed: Whole = Field(
        0,
        description="Of the sampled rows and of other random choices: the same seed gives the same "
        "values, another seed another sample.",
    )
    quantiles: list[float] = Field(
        [],
        description=f"Up to {MAX_QUANTILES} shares from 0 to 1, such as [0.1, 0.5, 0.9]. Each "
        "instrument with a value for every row then has `quantiles` beside it: the value that each "
        "share of a head's rows stays below. Their `error` is null where all rows were read, else "
        "they are those of the sample.",
    )


class AttentionMapBody(OpenDocumentBody):
    """Which head to map, which window of it, and how."""

    layer: Whole
    head: Whole
    rows: TokenSpanBody | None = Field(None, description="Queries shown; all when absent.")
    columns: TokenSpanBody | None = Field(None, description="Keys shown; all when absent.")
    height: Whole = Field(MapOptions.height, description="Cells, or pixels of a PNG.")
    width: Whole = Field(MapOptions.width, description="Cells, or pixels of a PNG.")
    statistic: Statistic = Field(
        "mass",
        description="A cell's value: mass (attention that its mean row gives it; a whole row sums "
        "to 1), mean (of its entries) or sum (of its entries).",
    )
    format: Literal["json", "png"] = "json"
    encoding_format: EncodingFormat = Field(
        "float", description="Lists of numbers, or base64 of little-endian float32, row by row."
    )
    links: Whole = Field(MapOptions.links, description="How many of the strongest single entries.")
    topics: Whole = Field(MapOptions.topics, description="How many of LLN's channels.")
    topic_tokens: Whole = Field(
        MapOptions.topic_tokens, description="Tokens listed for each topic."
    )

    def options(self) -> MapOptions:
        return MapOptions(
            layer=self.layer,
            head=self.head,
            rows=None if self.rows is None else self.rows.span(),
            columns=None if self.columns is None else self.columns.span(),
            height=self.height,
            width=self.width,
            links=self.links,
            topics=self.topics,
            topic_tokens=self.topic_tokens,
        )


class StructureBody(OpenDocumentBody):
    """A document to segment at several scales."""

    scales: list[Whole] | None = Field(
        None, description="Tokens of a typical segment, from coarse to fine; chosen when absent."
    )
