from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DiagnoseRequest(_message.Message):
    __slots__ = ("model", "text", "layers", "heads", "instruments", "mode", "sampled_rows", "seed", "quantiles")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    INSTRUMENTS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_ROWS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    QUANTILES_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    layers: _containers.RepeatedScalarFieldContainer[int]
    heads: _containers.RepeatedScalarFieldContainer[int]
    instruments: _containers.RepeatedScalarFieldContainer[str]
    mode: str
    sampled_rows: int
    seed: int
    quantiles: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., layers: _Optional[_Iterable[int]] = ..., heads: _Optional[_Iterable[int]] = ..., instruments: _Optional[_Iterable[str]] = ..., mode: _Optional[str] = ..., sampled_rows: _Optional[int] = ..., seed: _Optional[int] = ..., quantiles: _Optional[_Iterable[float]] = ...) -> None: ...

class DiagnoseResponse(_message.Message):
    __slots__ = ("model", "tokens", "layers", "heads", "attention", "instruments", "queue_s", "compute_s", "mode", "left_out", "sampled_rows", "rows_read", "seed", "quantiles", "notes")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    INSTRUMENTS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_READ_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    QUANTILES_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    model: str
    tokens: int
    layers: _containers.RepeatedScalarFieldContainer[int]
    heads: _containers.RepeatedScalarFieldContainer[int]
    attention: _containers.RepeatedScalarFieldContainer[str]
    instruments: _containers.RepeatedCompositeFieldContainer[Instrument]
    queue_s: float
    compute_s: float
    mode: str
    left_out: _containers.RepeatedCompositeFieldContainer[LeftOut]
    sampled_rows: int
    rows_read: int
    seed: int
    quantiles: _containers.RepeatedScalarFieldContainer[float]
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[str] = ..., tokens: _Optional[int] = ..., layers: _Optional[_Iterable[int]] = ..., heads: _Optional[_Iterable[int]] = ..., attention: _Optional[_Iterable[str]] = ..., instruments: _Optional[_Iterable[_Union[Instrument, _Mapping]]] = ..., queue_s: _Optional[float] = ..., compute_s: _Optional[float] = ..., mode: _Optional[str] = ..., left_out: _Optional[_Iterable[_Union[LeftOut, _Mapping]]] = ..., sampled_rows: _Optional[int] = ..., rows_read: _Optional[int] = ..., seed: _Optional[int] = ..., quantiles: _Optional[_Iterable[float]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class Instrument(_message.Message):
    __slots__ = ("name", "unit", "method", "layers", "compute_s", "scope", "cost", "beside")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    BESIDE_FIELD_NUMBER: _ClassVar[int]
    name: str
    unit: str
    method: str
    layers: _containers.RepeatedCompositeFieldContainer[HeadValues]
    compute_s: float
    scope: str
    cost: str
    beside: _containers.RepeatedCompositeFieldContainer[Beside]
    def __init__(self, name: _Optional[str] = ..., unit: _Optional[str] = ..., method: _Optional[str] = ..., layers: _Optional[_Iterable[_Union[HeadValues, _Mapping]]] = ..., compute_s: _Optional[float] = ..., scope: _Optional[str] = ..., cost: _Optional[str] = ..., beside: _Optional[_Iterable[_Union[Beside, _Mapping]]] = ...) -> None: ...

class Beside(_message.Message):
    __slots__ = ("name", "unit", "layers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    unit: str
    layers: _containers.RepeatedCompositeFieldContainer[Array]
    def __init__(self, name: _Optional[str] = ..., unit: _Optional[str] = ..., layers: _Optional[_Iterable[_Union[Array, _Mapping]]] = ...) -> None: ...

class Array(_message.Message):
    __slots__ = ("shape", "values", "errors")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    errors: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., values: _Optional[_Iterable[float]] = ..., errors: _Optional[_Iterable[float]] = ...) -> None: ...

class LeftOut(_message.Message):
    __slots__ = ("instrument", "reason")
    INSTRUMENT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    instrument: str
    reason: str
    def __init__(self, instrument: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ListInstrumentsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListInstrumentsResponse(_message.Message):
    __slots__ = ("instruments",)
    INSTRUMENTS_FIELD_NUMBER: _ClassVar[int]
    instruments: _containers.RepeatedCompositeFieldContainer[InstrumentInfo]
    def __init__(self, instruments: _Optional[_Iterable[_Union[InstrumentInfo, _Mapping]]] = ...) -> None: ...

class InstrumentInfo(_message.Message):
    __slots__ = ("name", "unit", "scope", "description")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    unit: str
    scope: str
    description: str
    def __init__(self, name: _Optional[str] = ..., unit: _Optional[str] = ..., scope: _Optional[str] = ..., description: _Optional[str] = ...) -> None: ...

class HeadValues(_message.Message):
    __slots__ = ("values", "errors", "labels")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    errors: _containers.RepeatedScalarFieldContainer[float]
    labels: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, values: _Optional[_Iterable[float]] = ..., errors: _Optional[_Iterable[float]] = ..., labels: _Optional[_Iterable[str]] = ...) -> None: ...

class AttentionMapRequest(_message.Message):
    __slots__ = ("text", "document", "model", "layer", "head", "rows", "columns", "height", "width", "links", "topics", "topic_tokens")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_TOKENS_FIELD_NUMBER: _ClassVar[int]
    text: str
    document: str
    model: str
    layer: int
    head: int
    rows: TokenRange
    columns: TokenRange
    height: int
    width: int
    links: int
    topics: int
    topic_tokens: int
    def __init__(self, text: _Optional[str] = ..., document: _Optional[str] = ..., model: _Optional[str] = ..., layer: _Optional[int] = ..., head: _Optional[int] = ..., rows: _Optional[_Union[TokenRange, _Mapping]] = ..., columns: _Optional[_Union[TokenRange, _Mapping]] = ..., height: _Optional[int] = ..., width: _Optional[int] = ..., links: _Optional[int] = ..., topics: _Optional[int] = ..., topic_tokens: _Optional[int] = ...) -> None: ...

class TokenRange(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class AttentionMapResponse(_message.Message):
    __slots__ = ("model", "document", "tokens", "attention", "row_edges", "column_edges", "mass", "links", "topics", "queue_s", "compute_s")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    ROW_EDGES_FIELD_NUMBER: _ClassVar[int]
    COLUMN_EDGES_FIELD_NUMBER: _ClassVar[int]
    MASS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    model: str
    document: str
    tokens: int
    attention: str
    row_edges: _containers.RepeatedScalarFieldContainer[int]
    column_edges: _containers.RepeatedScalarFieldContainer[int]
    mass: _containers.RepeatedScalarFieldContainer[float]
    links: _containers.RepeatedCompositeFieldContainer[Link]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    queue_s: float
    compute_s: float
    def __init__(self, model: _Optional[str] = ..., document: _Optional[str] = ..., tokens: _Optional[int] = ..., attention: _Optional[str] = ..., row_edges: _Optional[_Iterable[int]] = ..., column_edges: _Optional[_Iterable[int]] = ..., mass: _Optional[_Iterable[float]] = ..., links: _Optional[_Iterable[_Union[Link, _Mapping]]] = ..., topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., queue_s: _Optional[float] = ..., compute_s: _Optional[float] = ...) -> None: ...

class Link(_message.Message):
    __slots__ = ("query", "key", "weight")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    query: int
    key: int
    weight: float
    def __init__(self, query: _Optional[int] = ..., key: _Optional[int] = ..., weight: _Optional[float] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("channel", "share", "effective_tokens", "tokens", "users")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    channel: int
    share: float
    effective_tokens: float
    tokens: _containers.RepeatedCompositeFieldContainer[TopicToken]
    users: _containers.RepeatedCompositeFieldContainer[TopicToken]
    def __init__(self, channel: _Optional[int] = ..., share: _Optional[float] = ..., effective_tokens: _Optional[float] = ..., tokens: _Optional[_Iterable[_Union[TopicToken, _Mapping]]] = ..., users: _Optional[_Iterable[_Union[TopicToken, _Mapping]]] = ...) -> None: ...

class TopicToken(_message.Message):
    __slots__ = ("index", "token", "characters", "weight")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    index: int
    token: str
    characters: TokenRange
    weight: float
    def __init__(self, index: _Optional[int] = ..., token: _Optional[str] = ..., characters: _Optional[_Union[TokenRange, _Mapping]] = ..., weight: _Optional[float] = ...) -> None: ...
