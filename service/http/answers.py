"""What answers hold, for openapi.json. Handlers write JSON directly; tests hold them to this."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, RootModel

from engine.errors import Quantity

VectorValue: TypeAlias = list[float] | str
"""Numbers, or base64 of little-endian float32."""


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SpanValue(Answer):
    """A half-open range."""

    start: int
    end: int


class Usage(Answer):
    prompt_tokens: int
    total_tokens: int


class EmbeddingNotes(Answer):
    """There only if the text was cut, or if the model does not pool and the vector is a matrix."""

    tokens: int | None = None
    tokens_embedded: int | None = None
    dropped: SpanValue | None = None
    shape: list[int] | None = None


class EmbeddingItem(Answer):
    object: Literal["embedding"]
    index: int
    embedding: VectorValue | list[list[float]]
    lln: EmbeddingNotes | None = None


class EmbeddingsAnswer(Answer):
    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: Usage


class AccountingValue(Answer):
    """What the text cost, and the characters that truncation dropped."""

    tokens: int
    tokens_embedded: int
    dropped: SpanValue | None
    queue_s: float
    compute_s: float


class ChunkItem(Answer):
    """Characters are code points of the text; headings are those it stands under, outermost first,
    and only where chunks go from heading to heading."""

    index: int
    tokens: SpanValue
    characters: SpanValue
    headings: list[str]
    vector: VectorValue


class DocumentAnswer(Answer):
    object: Literal["document_embedding"]
    model: str
    vector: VectorValue
    chunks: list[ChunkItem]
    accounting: AccountingValue
    usage: Usage


class TokenizeAnswer(Answer):
    """Offsets are of characters in the text; special tokens have [0, 0].

    `document` is there only if the text was to be kept open.
    """

    model: str
    count: int
    ids: list[int]
    offsets: list[Annotated[list[int], Field(min_length=2, max_length=2)]]
    tokens: list[str]
    document: str | None


class PlanAnswer(Answer):
    """What a text would take here, were it alone."""

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


class BesideValue(Answer):
    """A quantity read beside a value: by layer, a number or a list for each head (of whole layers
    just one); null for a layer where it is not read."""

    unit: str
    values: list[Any]
    error: list[Any] | None


class Reading(Answer):
    """One instrument: a value for each layer and head (of whole layers, one for each layer), and
    its error where it is not exact."""

    unit: str
    scope: Literal["head", "layer"]
    method: str
    values: list[list[float]]
    error: list[list[float]] | None
    beside: dict[str, BesideValue]
    cost: str
    compute_s: float


class InstrumentItem(Answer):
    name: str
    unit: str
    scope: Literal["head", "layer"]
    description: str


class InstrumentList(Answer):
    object: Literal["list"]
    data: list[InstrumentItem]


class DiagnosticsAnswer(Answer):
    object: Literal["diagnosis"]
    model: str
    tokens: int
    mode: Literal["auto", "exact", "sampled"]
    layers: list[int]
    heads: list[int]
    attention: list[str]
    instruments: dict[str, Reading]
    left_out: dict[str, str]
    accounting: AccountingValue


class LinkItem(Answer):
    """One entry of the attention matrix."""

    query: int
    key: int
    weight: float


class TopicTokenItem(Answer):
    """Special tokens have no characters."""

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

    `topics` is null where none were asked for or the head has no channels.
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
    """A part of the document between two changes of subject, and its own parts."""

    level: int
    tokens: SpanValue
    characters: SpanValue
    children: list[SegmentItem]


class StructureAnswer(Answer):
    """`scales` has the tokens of a typical segment of each level; `layer` is the one whose input
    was looked at."""

    object: Literal["structure"]
    model: str
    document: str
    tokens: int
    layer: int
    scales: list[int]
    segments: list[SegmentItem]


class ErrorDetail(Answer):
    """What went wrong, for people (message) and programs (the rest)."""

    message: str
    type: str
    code: str
    param: str | None
    limit: Quantity | None
    actual: Quantity | None


class ErrorAnswer(Answer):
    error: ErrorDetail


class BenchmarkAnswer(Answer):
    """Rows have the columns of their suite, which GET /v1/benchmarks/suites lists."""

    object: Literal["benchmark"]
    id: str
    state: Literal["queued", "running", "done", "failed", "cancelled", "interrupted"]
    suite: str
    model: str
    lengths: list[int]
    attentions: list[str]
    dtypes: list[str]
    repeats: int
    seconds: float
    training: bool
    created_at: float
    started_at: float | None
    finished_at: float | None
    num_rows: int
    rows: list[dict[str, str | int | float]]
    machine: dict[str, str]
    error: ErrorDetail | None


class BenchmarkList(Answer):
    object: Literal["list"]
    data: list[BenchmarkAnswer]


class MeasureValue(Answer):
    name: str
    unit: str
    better: Literal["lower", "higher"]


class SuiteValue(Answer):
    name: str
    about: str
    fields: list[str]
    lengths: list[int]
    attentions: list[str]
    known_attentions: list[str]
    labels: list[str]
    x: MeasureValue
    measures: list[MeasureValue]


class SuiteList(Answer):
    object: Literal["list"]
    data: list[SuiteValue]


class Change(Answer):
    """One figure in two runs; `ratio` is b's over a's, null where a's is 0."""

    a: float
    b: float
    ratio: float | None
    better: Literal["a", "b", "neither"]


class ComparedRow(Answer):
    key: dict[str, str | int | float]
    measures: dict[str, Change]


PlanValue: TypeAlias = str | int | float | bool | list[int] | list[str]


class ComparisonAnswer(Answer):
    object: Literal["benchmark_comparison"]
    suite: str
    a: str
    b: str
    rows: list[ComparedRow]
    only_in_a: list[dict[str, str | int | float]]
    only_in_b: list[dict[str, str | int | float]]
    plan: dict[str, tuple[PlanValue, PlanValue]] = Field(
        description="What the two were asked for, where that differs."
    )
    machine: dict[str, tuple[str | None, str | None]]


class ClaimItem(Answer):
    """One claim. `corrected` is there only if it was measured to be true, and `margin` is what the
    true statement had to spare on its worst case."""

    id: str
    paper: str
    statement: str
    verdict: Literal["holds", "fails", "holds_corrected", "definition"]
    remark: str | None
    corrected: str | None
    margin: float | None
    evidence: dict[str, Any]
    seconds: float


class ClaimList(Answer):
    object: Literal["list"]
    state: Literal["computing", "done"]
    checked: int
    total: int
    data: list[ClaimItem]


class ModelAnswer(Answer):
    """OpenAI's four fields first."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    name: str
    family: str
    attention: list[str]
    dim: int
    num_layers: int
    num_heads: int
    max_tokens: int
    position_table: int
    pooling: str
    prompts: dict[str, str]
    revision: str
    calibration: str | None
    source: str
    device: str
    dtype: str
    aliases: list[str]


class Health(Answer):
    status: Literal["alive", "ready"]
    models: list[str] | None = None


class TeiPooling(Answer):
    pooling: str


class TeiModelType(Answer):
    embedding: TeiPooling


class InfoAnswer(BaseModel):
    """What runs here; the fields from `model_id` on are those of text-embeddings-inference, of the
    model that answers when none is named."""

    name: str
    version: str
    python: str
    libraries: dict[str, str]
    models: list[dict[str, Any]]
    limits: dict[str, Any]
    model_id: str
    model_sha: str
    model_dtype: str
    served_model_name: str
    model_type: TeiModelType
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    sha: str | None
    docker_label: str | None


class VectorList(RootModel[list[list[float]]]):
    """A vector for each text."""


class TokenStates(RootModel[list[list[list[float]]]]):
    """For each text, a vector for each of its tokens."""


class ModelList(Answer):
    object: Literal["list"]
    data: list[ModelAnswer]
