from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DiagnoseRequest(_message.Message):
    __slots__ = ("model", "text", "layers", "heads", "instruments", "mode")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    INSTRUMENTS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    layers: _containers.RepeatedScalarFieldContainer[int]
    heads: _containers.RepeatedScalarFieldContainer[int]
    instruments: _containers.RepeatedScalarFieldContainer[str]
    mode: str
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., layers: _Optional[_Iterable[int]] = ..., heads: _Optional[_Iterable[int]] = ..., instruments: _Optional[_Iterable[str]] = ..., mode: _Optional[str] = ...) -> None: ...

class DiagnoseResponse(_message.Message):
    __slots__ = ("model", "tokens", "layers", "heads", "attention", "instruments", "queue_s", "compute_s", "mode", "left_out")
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
    def __init__(self, model: _Optional[str] = ..., tokens: _Optional[int] = ..., layers: _Optional[_Iterable[int]] = ..., heads: _Optional[_Iterable[int]] = ..., attention: _Optional[_Iterable[str]] = ..., instruments: _Optional[_Iterable[_Union[Instrument, _Mapping]]] = ..., queue_s: _Optional[float] = ..., compute_s: _Optional[float] = ..., mode: _Optional[str] = ..., left_out: _Optional[_Iterable[_Union[LeftOut, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("values", "errors")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    errors: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ..., errors: _Optional[_Iterable[float]] = ...) -> None: ...
