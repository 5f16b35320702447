from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

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
TRUNCATE_UNSPECIFIED: Truncate
TRUNCATE_ERROR: Truncate
TRUNCATE_START: Truncate
TRUNCATE_END: Truncate
VECTOR_FORMAT_UNSPECIFIED: VectorFormat
VECTOR_FORMAT_FLOAT32: VectorFormat
VECTOR_FORMAT_FLOAT16: VectorFormat
VECTOR_FORMAT_INT8: VectorFormat

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
    __slots__ = ("prompt_name", "dimensions", "normalize", "truncate", "format")
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    prompt_name: str
    dimensions: int
    normalize: bool
    truncate: Truncate
    format: VectorFormat
    def __init__(self, prompt_name: _Optional[str] = ..., dimensions: _Optional[int] = ..., normalize: _Optional[bool] = ..., truncate: _Optional[_Union[Truncate, str]] = ..., format: _Optional[_Union[VectorFormat, str]] = ...) -> None: ...

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
    __slots__ = ("tokens", "tokens_embedded", "dropped", "queue_s", "compute_s")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_EMBEDDED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    tokens_embedded: int
    dropped: CharacterSpan
    queue_s: float
    compute_s: float
    def __init__(self, tokens: _Optional[int] = ..., tokens_embedded: _Optional[int] = ..., dropped: _Optional[_Union[CharacterSpan, _Mapping]] = ..., queue_s: _Optional[float] = ..., compute_s: _Optional[float] = ...) -> None: ...

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
