from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DiagnoseRequest(_message.Message):
    __slots__ = ("model", "text", "layers", "heads", "instruments")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    INSTRUMENTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    layers: _containers.RepeatedScalarFieldContainer[int]
    heads: _containers.RepeatedScalarFieldContainer[int]
    instruments: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., layers: _Optional[_Iterable[int]] = ..., heads: _Optional[_Iterable[int]] = ..., instruments: _Optional[_Iterable[str]] = ...) -> None: ...

class DiagnoseResponse(_message.Message):
    __slots__ = ("model", "tokens", "layers", "heads", "attention", "instruments", "queue_s", "compute_s")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    INSTRUMENTS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    model: str
    tokens: int
    layers: _containers.RepeatedScalarFieldContainer[int]
    heads: _containers.RepeatedScalarFieldContainer[int]
    attention: _containers.RepeatedScalarFieldContainer[str]
    instruments: _containers.RepeatedCompositeFieldContainer[Instrument]
    queue_s: float
    compute_s: float
    def __init__(self, model: _Optional[str] = ..., tokens: _Optional[int] = ..., layers: _Optional[_Iterable[int]] = ..., heads: _Optional[_Iterable[int]] = ..., attention: _Optional[_Iterable[str]] = ..., instruments: _Optional[_Iterable[_Union[Instrument, _Mapping]]] = ..., queue_s: _Optional[float] = ..., compute_s: _Optional[float] = ...) -> None: ...

class Instrument(_message.Message):
    __slots__ = ("name", "unit", "method", "layers", "compute_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    unit: str
    method: str
    layers: _containers.RepeatedCompositeFieldContainer[HeadValues]
    compute_s: float
    def __init__(self, name: _Optional[str] = ..., unit: _Optional[str] = ..., method: _Optional[str] = ..., layers: _Optional[_Iterable[_Union[HeadValues, _Mapping]]] = ..., compute_s: _Optional[float] = ...) -> None: ...

class HeadValues(_message.Message):
    __slots__ = ("values", "errors")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    errors: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ..., errors: _Optional[_Iterable[float]] = ...) -> None: ...
