from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "aliases", "family", "attention", "dim", "num_layers", "num_heads", "max_tokens", "position_table", "pooling", "prompts", "revision", "calibration", "source", "device", "dtype", "int8_range", "chunk_context")
    class PromptsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_HEADS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    POSITION_TABLE_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    INT8_RANGE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    family: str
    attention: _containers.RepeatedScalarFieldContainer[str]
    dim: int
    num_layers: int
    num_heads: int
    max_tokens: int
    position_table: int
    pooling: str
    prompts: _containers.ScalarMap[str, str]
    revision: str
    calibration: str
    source: str
    device: str
    dtype: str
    int8_range: float
    chunk_context: str
    def __init__(self, name: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., family: _Optional[str] = ..., attention: _Optional[_Iterable[str]] = ..., dim: _Optional[int] = ..., num_layers: _Optional[int] = ..., num_heads: _Optional[int] = ..., max_tokens: _Optional[int] = ..., position_table: _Optional[int] = ..., pooling: _Optional[str] = ..., prompts: _Optional[_Mapping[str, str]] = ..., revision: _Optional[str] = ..., calibration: _Optional[str] = ..., source: _Optional[str] = ..., device: _Optional[str] = ..., dtype: _Optional[str] = ..., int8_range: _Optional[float] = ..., chunk_context: _Optional[str] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "text")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("ids", "tokens", "starts", "ends")
    IDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[str]
    starts: _containers.RepeatedScalarFieldContainer[int]
    ends: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[str]] = ..., starts: _Optional[_Iterable[int]] = ..., ends: _Optional[_Iterable[int]] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("model", "tokens", "text", "context", "record", "vector")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    VECTOR_FIELD_NUMBER: _ClassVar[int]
    model: str
    tokens: int
    text: str
    context: str
    record: bytes
    vector: bool
    def __init__(self, model: _Optional[str] = ..., tokens: _Optional[int] = ..., text: _Optional[str] = ..., context: _Optional[str] = ..., record: _Optional[bytes] = ..., vector: _Optional[bool] = ...) -> None: ...

class PlanResponse(_message.Message):
    __slots__ = ("model", "tokens", "fits", "path", "bytes", "seconds", "tiles", "tile_tokens", "keeps_projections", "max_tokens", "max_bytes", "tokens_alone", "tokens_read", "ranks")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FITS_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    TILE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KEEPS_PROJECTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_ALONE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_READ_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    model: str
    tokens: int
    fits: bool
    path: str
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
    def __init__(self, model: _Optional[str] = ..., tokens: _Optional[int] = ..., fits: _Optional[bool] = ..., path: _Optional[str] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., tiles: _Optional[int] = ..., tile_tokens: _Optional[int] = ..., keeps_projections: _Optional[bool] = ..., max_tokens: _Optional[int] = ..., max_bytes: _Optional[int] = ..., tokens_alone: _Optional[int] = ..., tokens_read: _Optional[int] = ..., ranks: _Optional[int] = ...) -> None: ...
