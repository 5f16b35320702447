from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunBenchmarkRequest(_message.Message):
    __slots__ = ("suite", "model", "lengths", "attentions", "dtypes", "repeats", "seconds", "training")
    SUITE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    ATTENTIONS_FIELD_NUMBER: _ClassVar[int]
    DTYPES_FIELD_NUMBER: _ClassVar[int]
    REPEATS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    suite: str
    model: str
    lengths: _containers.RepeatedScalarFieldContainer[int]
    attentions: _containers.RepeatedScalarFieldContainer[str]
    dtypes: _containers.RepeatedScalarFieldContainer[str]
    repeats: int
    seconds: float
    training: bool
    def __init__(self, suite: _Optional[str] = ..., model: _Optional[str] = ..., lengths: _Optional[_Iterable[int]] = ..., attentions: _Optional[_Iterable[str]] = ..., dtypes: _Optional[_Iterable[str]] = ..., repeats: _Optional[int] = ..., seconds: _Optional[float] = ..., training: _Optional[bool] = ...) -> None: ...

class GetBenchmarkRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ListBenchmarksRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBenchmarksResponse(_message.Message):
    __slots__ = ("benchmarks",)
    BENCHMARKS_FIELD_NUMBER: _ClassVar[int]
    benchmarks: _containers.RepeatedCompositeFieldContainer[Benchmark]
    def __init__(self, benchmarks: _Optional[_Iterable[_Union[Benchmark, _Mapping]]] = ...) -> None: ...

class CancelBenchmarkRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class BenchmarkEvent(_message.Message):
    __slots__ = ("benchmark", "row", "done", "num_rows")
    BENCHMARK_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    benchmark: Benchmark
    row: BenchmarkRow
    done: int
    num_rows: int
    def __init__(self, benchmark: _Optional[_Union[Benchmark, _Mapping]] = ..., row: _Optional[_Union[BenchmarkRow, _Mapping]] = ..., done: _Optional[int] = ..., num_rows: _Optional[int] = ...) -> None: ...

class Benchmark(_message.Message):
    __slots__ = ("id", "state", "suite", "model", "lengths", "attentions", "dtypes", "repeats", "seconds", "created_at", "started_at", "finished_at", "num_rows", "rows", "machine", "error_code", "error_message", "training", "replica")
    class MachineEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SUITE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    ATTENTIONS_FIELD_NUMBER: _ClassVar[int]
    DTYPES_FIELD_NUMBER: _ClassVar[int]
    REPEATS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    id: str
    state: str
    suite: str
    model: str
    lengths: _containers.RepeatedScalarFieldContainer[int]
    attentions: _containers.RepeatedScalarFieldContainer[str]
    dtypes: _containers.RepeatedScalarFieldContainer[str]
    repeats: int
    seconds: float
    created_at: float
    started_at: float
    finished_at: float
    num_rows: int
    rows: _containers.RepeatedCompositeFieldContainer[BenchmarkRow]
    machine: _containers.ScalarMap[str, str]
    error_code: str
    error_message: str
    training: bool
    replica: str
    def __init__(self, id: _Optional[str] = ..., state: _Optional[str] = ..., suite: _Optional[str] = ..., model: _Optional[str] = ..., lengths: _Optional[_Iterable[int]] = ..., attentions: _Optional[_Iterable[str]] = ..., dtypes: _Optional[_Iterable[str]] = ..., repeats: _Optional[int] = ..., seconds: _Optional[float] = ..., created_at: _Optional[float] = ..., started_at: _Optional[float] = ..., finished_at: _Optional[float] = ..., num_rows: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[BenchmarkRow, _Mapping]]] = ..., machine: _Optional[_Mapping[str, str]] = ..., error_code: _Optional[str] = ..., error_message: _Optional[str] = ..., training: _Optional[bool] = ..., replica: _Optional[str] = ...) -> None: ...

class BenchmarkRow(_message.Message):
    __slots__ = ("labels", "figures")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class FiguresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    LABELS_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.ScalarMap[str, str]
    figures: _containers.ScalarMap[str, float]
    def __init__(self, labels: _Optional[_Mapping[str, str]] = ..., figures: _Optional[_Mapping[str, float]] = ...) -> None: ...
