"""The bodies of answers, in the order of the routes.

They document openapi.json: handlers write JSON directly, and tests check it against these models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, RootModel

from engine.errors import Quantity
from engine.types import RankScoring
from service.batches.records import BatchStatus

VectorValue: TypeAlias = list[float] | str
"""Numbers, or base64 of little-endian float32."""


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


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
    detail: str | None = Field(
        None, description="The message once more, on paths where other vendors' clients read it."
    )


class SpanValue(Answer):
    """A half-open range."""

    start: int
    end: int


class Usage(Answer):
    prompt_tokens: int
    total_tokens: int


class AccountingValue(Answer):
    """What the text cost, and the characters that truncation dropped."""

    tokens: int
    tokens_embedded: int
    dropped: SpanValue | None
    queue_s: float
    compute_s: float
    tokens_alone: int


class EmbeddingNotes(Answer):
    """Present only if the text was cut, or if the model does not pool: `shape` is the matrix's."""

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


class ChunkItem(Answer):
    """`characters` are code points of the text. `headings` are those above the chunk, outermost
    first, if chunks go from heading to heading."""

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


class LivingChunkItem(ChunkItem):
    """A chunk of a document with a record. `previous` is the number of a kept chunk in the record;
    `staleness` is what 1 - cosine to a fresh reading stays within for 99 % of kept chunks."""

    previous: int | None
    staleness: float


class LivingDocumentAnswer(DocumentAnswer):
    """A document with its record, in base64. `gone` are the record's chunks that are no more."""

    chunks: list[LivingChunkItem]  # type: ignore[assignment]
    record: str
    tokens_read: int
    segments: int
    segments_read: int
    staleness: float
    gone: list[int]
    rounds: int


class InstrumentItem(Answer):
    name: str
    unit: str
    scope: Literal["head", "layer"]
    description: str


class InstrumentList(Answer):
    object: Literal["list"]
    data: list[InstrumentItem]


class BesideValue(Answer):
    """An additional quantity of an instrument: for each layer, a number or a list per head (one of
    each for an instrument of whole layers); null for a layer where it is not measured."""

    unit: str
    values: list[Any]
    error: list[Any] | None


class Reading(Answer):
    """One instrument: a value for each layer and head (one for each layer if its scope is the
    layer), its error if it is not exact, and what it names the head if it names heads."""

    unit: str
    scope: Literal["head", "layer"]
    method: str
    values: list[list[float]]
    error: list[list[float]] | None
    labels: list[list[str]] | None
    beside: dict[str, BesideValue]
    cost: str
    compute_s: float


class DiagnosticsAnswer(Answer):
    """`attention` is that of each layer as it was measured: LLN+Diag is block-diagonal in texts of
    one block. `rows_read` is how many rows of a head were read wherever a row costs as much as the
    text is long. `notes` say what to know before comparing the values with those of other texts."""

    object: Literal["diagnosis"]
    model: str
    tokens: int
    mode: Literal["auto", "exact", "sampled"]
    sampled_rows: int
    rows_read: int
    seed: int
    quantiles: list[float]
    layers: list[int]
    heads: list[int]
    attention: list[str]
    notes: list[str]
    instruments: dict[str, Reading]
    left_out: dict[str, str]
    accounting: AccountingValue


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


class ClaimItem(Answer):
    """One claim. `corrected` is a corrected statement that was measured to be true. `margin` is how
    much the true statement had to spare in its worst case."""

    id: str
    paper: str
    statement: str
    place: str | None
    printed: str | None
    reading: str
    tolerance: float
    flips: str
    verdict: Literal["holds", "fails", "holds_corrected", "definition", "open"]
    remark: str | None
    corrected: str | None
    margin: float | None
    evidence: dict[str, Any]
    seconds: float


class ClaimList(Answer):
    object: Literal["list"]
    state: Literal["not_started", "computing", "done", "failed"]
    checked: int
    total: int
    data: list[ClaimItem]
    error: ErrorDetail | None


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
        description="The options of the two runs that differ."
    )
    machine: dict[str, tuple[str | None, str | None]]


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
    int8_range: float
    aliases: list[str]


class ModelList(Answer):
    object: Literal["list"]
    data: list[ModelAnswer]


class TeiPooling(Answer):
    pooling: str


class TeiModelType(Answer):
    embedding: TeiPooling


class InfoAnswer(BaseModel):
    """What runs here. The fields from `model_id` on are those of text-embeddings-inference, for the
    default model."""

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


class FileAnswer(Answer):
    """`expires_at` is null for a file that is kept until it is deleted."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"]
    status_details: None


class FileList(Answer):
    object: Literal["list"]
    data: list[FileAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(Answer):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class BatchLineError(Answer):
    code: str
    message: str
    line: int | None
    param: str | None


class BatchLineErrors(Answer):
    object: Literal["list"]
    data: list[BatchLineError]


class BatchCounts(Answer):
    total: int
    completed: int
    failed: int


class BatchAnswer(Answer):
    """A batch in OpenAI's terms. `errors` are those of a file that could not be read as requests;
    requests that failed are in the file `error_file_id`."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    errors: BatchLineErrors | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    usage: dict[str, Any]
    metadata: dict[str, str] | None


class BatchList(Answer):
    object: Literal["list"]
    data: list[BatchAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Health(Answer):
    status: Literal["alive", "ready"]
    models: list[str] | None = None
