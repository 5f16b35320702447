from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_NORMAL: _ClassVar[Priority]
    PRIORITY_BACKGROUND: _ClassVar[Priority]

class Truncate(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRUNCATE_UNSPECIFIED: _ClassVar[Truncate]
    TRUNCATE_ERROR: _ClassVar[Truncate]
    TRUNCATE_START: _ClassVar[Truncate]
    TRUNCATE_END: _ClassVar[Truncate]

class VectorFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VECTOR_FORMAT_UNSPECIFIED: _ClassVar[VectorFormat]
    VECTOR_FORMAT_FLOAT32: _ClassVar[VectorFormat]
    VECTOR_FORMAT_FLOAT16: _ClassVar[VectorFormat]
    VECTOR_FORMAT_INT8: _ClassVar[VectorFormat]
    VECTOR_FORMAT_UINT8: _ClassVar[VectorFormat]
    VECTOR_FORMAT_BINARY: _ClassVar[VectorFormat]
    VECTOR_FORMAT_UBINARY: _ClassVar[VectorFormat]
PRIORITY_UNSPECIFIED: Priority
PRIORITY_NORMAL: Priority
PRIORITY_BACKGROUND: Priority
TRUNCATE_UNSPECIFIED: Truncate
TRUNCATE_ERROR: Truncate
TRUNCATE_START: Truncate
TRUNCATE_END: Truncate
VECTOR_FORMAT_UNSPECIFIED: VectorFormat
VECTOR_FORMAT_FLOAT32: VectorFormat
VECTOR_FORMAT_FLOAT16: VectorFormat
VECTOR_FORMAT_INT8: VectorFormat
VECTOR_FORMAT_UINT8: VectorFormat
VECTOR_FORMAT_BINARY: VectorFormat
VECTOR_FORMAT_UBINARY: VectorFormat

class EmbedRequest(_message.Message):
    __slots__ = ("model", "input", "options")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    model: str
    input: _containers.RepeatedCompositeFieldContainer[Input]
    options: EmbedOptions
    def __init__(self, model: _Optional[str] = ..., input: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., options: _Optional[_Union[EmbedOptions, _Mapping]] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("model", "embeddings")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    model: str
    embeddings: _containers.RepeatedCompositeFieldContainer[Embedding]
    def __init__(self, model: _Optional[str] = ..., embeddings: _Optional[_Iterable[_Union[Embedding, _Mapping]]] = ...) -> None: ...

class EmbedStreamRequest(_message.Message):
    __slots__ = ("id", "model", "input", "options")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    id: str
    model: str
    input: Input
    options: EmbedOptions
    def __init__(self, id: _Optional[str] = ..., model: _Optional[str] = ..., input: _Optional[_Union[Input, _Mapping]] = ..., options: _Optional[_Union[EmbedOptions, _Mapping]] = ...) -> None: ...

class EmbedStreamResponse(_message.Message):
    __slots__ = ("id", "embedding", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    embedding: Embedding
    error: Error
    def __init__(self, id: _Optional[str] = ..., embedding: _Optional[_Union[Embedding, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class EmbedDocumentRequest(_message.Message):
    __slots__ = ("open", "text", "record")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    open: DocumentOptions
    text: bytes
    record: bytes
    def __init__(self, open: _Optional[_Union[DocumentOptions, _Mapping]] = ..., text: _Optional[bytes] = ..., record: _Optional[bytes] = ...) -> None: ...

class DocumentOptions(_message.Message):
    __slots__ = ("model", "options", "chunking", "title", "with_record", "record_precision", "max_staleness", "exact", "fold", "vector")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CHUNKING_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    WITH_RECORD_FIELD_NUMBER: _ClassVar[int]
    RECORD_PRECISION_FIELD_NUMBER: _ClassVar[int]
    MAX_STALENESS_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    FOLD_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    model: str
    options: EmbedOptions
    chunking: Chunking
    title: str
    with_record: bool
    record_precision: str
    max_staleness: float
    exact: bool
    fold: bool
    vector: bool
    def __init__(self, model: _Optional[str] = ..., options: _Optional[_Union[EmbedOptions, _Mapping]] = ..., chunking: _Optional[_Union[Chunking, _Mapping]] = ..., title: _Optional[str] = ..., with_record: _Optional[bool] = ..., record_precision: _Optional[str] = ..., max_staleness: _Optional[float] = ..., exact: _Optional[bool] = ..., fold: _Optional[bool] = ..., vector: _Optional[bool] = ...) -> None: ...

class Chunking(_message.Message):
    __slots__ = ("fixed", "sentences", "headings", "spans", "opening", "alone", "context")
    FIXED_FIELD_NUMBER: _ClassVar[int]
    SENTENCES_FIELD_NUMBER: _ClassVar[int]
    HEADINGS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    OPENING_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    fixed: FixedChunks
    sentences: SentenceChunks
    headings: HeadingChunks
    spans: SpanChunks
    opening: float
    alone: float
    context: str
    def __init__(self, fixed: _Optional[_Union[FixedChunks, _Mapping]] = ..., sentences: _Optional[_Union[SentenceChunks, _Mapping]] = ..., headings: _Optional[_Union[HeadingChunks, _Mapping]] = ..., spans: _Optional[_Union[SpanChunks, _Mapping]] = ..., opening: _Optional[float] = ..., alone: _Optional[float] = ..., context: _Optional[str] = ...) -> None: ...

class FixedChunks(_message.Message):
    __slots__ = ("tokens", "overlap")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    overlap: int
    def __init__(self, tokens: _Optional[int] = ..., overlap: _Optional[int] = ...) -> None: ...

class SentenceChunks(_message.Message):
    __slots__ = ("min_tokens", "max_tokens")
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    min_tokens: int
    max_tokens: int
    def __init__(self, min_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class HeadingChunks(_message.Message):
    __slots__ = ("max_tokens", "format")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    format: str
    def __init__(self, max_tokens: _Optional[int] = ..., format: _Optional[str] = ...) -> None: ...

class SpanChunks(_message.Message):
    __slots__ = ("spans",)
    SPANS_FIELD_NUMBER: _ClassVar[int]
    spans: _containers.RepeatedCompositeFieldContainer[CharacterSpan]
    def __init__(self, spans: _Optional[_Iterable[_Union[CharacterSpan, _Mapping]]] = ...) -> None: ...

class DocumentEvent(_message.Message):
    __slots__ = ("accepted", "progress", "chunks", "result", "record")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    accepted: DocumentAccepted
    progress: DocumentProgress
    chunks: DocumentChunks
    result: DocumentResult
    record: DocumentRecord
    def __init__(self, accepted: _Optional[_Union[DocumentAccepted, _Mapping]] = ..., progress: _Optional[_Union[DocumentProgress, _Mapping]] = ..., chunks: _Optional[_Union[DocumentChunks, _Mapping]] = ..., result: _Optional[_Union[DocumentResult, _Mapping]] = ..., record: _Optional[_Union[DocumentRecord, _Mapping]] = ...) -> None: ...

class DocumentRecord(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class DocumentAccepted(_message.Message):
    __slots__ = ("model", "tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    tokens: int
    def __init__(self, model: _Optional[str] = ..., tokens: _Optional[int] = ...) -> None: ...

class DocumentProgress(_message.Message):
    __slots__ = ("tokens_done", "tokens_total", "seconds_left")
    TOKENS_DONE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SECONDS_LEFT_FIELD_NUMBER: _ClassVar[int]
    tokens_done: int
    tokens_total: int
    seconds_left: float
    def __init__(self, tokens_done: _Optional[int] = ..., tokens_total: _Optional[int] = ..., seconds_left: _Optional[float] = ...) -> None: ...

class DocumentChunks(_message.Message):
    __slots__ = ("chunks",)
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    def __init__(self, chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("index", "tokens", "characters", "headings", "vector", "previous", "staleness")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    HEADINGS_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    index: int
    tokens: TokenSpan
    characters: CharacterSpan
    headings: _containers.RepeatedScalarFieldContainer[str]
    vector: Vector
    previous: int
    staleness: float
    def __init__(self, index: _Optional[int] = ..., tokens: _Optional[_Union[TokenSpan, _Mapping]] = ..., characters: _Optional[_Union[CharacterSpan, _Mapping]] = ..., headings: _Optional[_Iterable[str]] = ..., vector: _Optional[_Union[Vector, _Mapping]] = ..., previous: _Optional[int] = ..., staleness: _Optional[float] = ...) -> None: ...

class DocumentResult(_message.Message):
    __slots__ = ("model", "vector", "num_chunks", "accounting", "tokens_read", "segments", "segments_read", "staleness", "gone", "rounds", "sealed", "sealed_staleness")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    NUM_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    ACCOUNTING_FIELD_NUMBER: _ClassVar[int]
    TOKENS_READ_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_READ_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    SEALED_STALENESS_FIELD_NUMBER: _ClassVar[int]
    model: str
    vector: Vector
    num_chunks: int
    accounting: Accounting
    tokens_read: int
    segments: int
    segments_read: int
    staleness: float
    gone: _containers.RepeatedScalarFieldContainer[int]
    rounds: int
    sealed: int
    sealed_staleness: float
    def __init__(self, model: _Optional[str] = ..., vector: _Optional[_Union[Vector, _Mapping]] = ..., num_chunks: _Optional[int] = ..., accounting: _Optional[_Union[Accounting, _Mapping]] = ..., tokens_read: _Optional[int] = ..., segments: _Optional[int] = ..., segments_read: _Optional[int] = ..., staleness: _Optional[float] = ..., gone: _Optional[_Iterable[int]] = ..., rounds: _Optional[int] = ..., sealed: _Optional[int] = ..., sealed_staleness: _Optional[float] = ...) -> None: ...

class TokenSpan(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("text", "token_ids")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: TokenIds
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class EmbedOptions(_message.Message):
    __slots__ = ("prompt_name", "dimensions", "normalize", "truncate", "format", "priority")
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    prompt_name: str
    dimensions: int
    normalize: bool
    truncate: Truncate
    format: VectorFormat
    priority: Priority
    def __init__(self, prompt_name: _Optional[str] = ..., dimensions: _Optional[int] = ..., normalize: _Optional[bool] = ..., truncate: _Optional[_Union[Truncate, str]] = ..., format: _Optional[_Union[VectorFormat, str]] = ..., priority: _Optional[_Union[Priority, str]] = ...) -> None: ...

class Embedding(_message.Message):
    __slots__ = ("vector", "accounting")
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    ACCOUNTING_FIELD_NUMBER: _ClassVar[int]
    vector: Vector
    accounting: Accounting
    def __init__(self, vector: _Optional[_Union[Vector, _Mapping]] = ..., accounting: _Optional[_Union[Accounting, _Mapping]] = ...) -> None: ...

class Vector(_message.Message):
    __slots__ = ("format", "shape", "data", "scales")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SCALES_FIELD_NUMBER: _ClassVar[int]
    format: VectorFormat
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    scales: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, format: _Optional[_Union[VectorFormat, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., scales: _Optional[_Iterable[float]] = ...) -> None: ...

class Accounting(_message.Message):
    __slots__ = ("tokens", "tokens_embedded", "dropped", "queue_s", "compute_s", "tokens_alone", "tokens_saved")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_EMBEDDED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    TOKENS_ALONE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_SAVED_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    tokens_embedded: int
    dropped: CharacterSpan
    queue_s: float
    compute_s: float
    tokens_alone: int
    tokens_saved: int
    def __init__(self, tokens: _Optional[int] = ..., tokens_embedded: _Optional[int] = ..., dropped: _Optional[_Union[CharacterSpan, _Mapping]] = ..., queue_s: _Optional[float] = ..., compute_s: _Optional[float] = ..., tokens_alone: _Optional[int] = ..., tokens_saved: _Optional[int] = ...) -> None: ...

class CharacterSpan(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("status", "code", "message", "param", "limit", "actual", "retry_after_s")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ACTUAL_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    status: int
    code: str
    message: str
    param: str
    limit: str
    actual: str
    retry_after_s: float
    def __init__(self, status: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., param: _Optional[str] = ..., limit: _Optional[str] = ..., actual: _Optional[str] = ..., retry_after_s: _Optional[float] = ...) -> None: ...
