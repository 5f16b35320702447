"""The output of a job: npy with a file of rows beside it, JSONL, or Parquet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from engine.errors import InvalidInput, unknown_name
from engine.types import Vector
from service.bulk.fields import EXACT
from service.bulk.parts import Parts
from service.files import whole_file
from service.readers.extra import need

SUFFIXES = (".npy", ".jsonl", ".parquet")

OWN_FIELDS = ("chunk", "start", "end", "tokens", "tokens_embedded", "truncated")
"""What the output says of each vector. Fields that are kept have other names."""

Form: TypeAlias = Callable[[Vector], NDArray[Any]]
"""What becomes of float32 vectors [rows, dim] in the output."""

_COLUMNS = ("id", *OWN_FIELDS)
_COLUMNS_OF_TRUNCATED = ("dropped_start", "dropped_end")


def check_output(path: Path) -> None:
    """Raises for an output of no known format, or whose format needs what is not installed."""
    if path.suffix not in SUFFIXES:
        raise unknown_name("format of the output", path.suffix, SUFFIXES, param="out")
    if path.suffix == ".parquet":
        need("pyarrow.parquet", "writing Parquet")


def check_kept(names: Sequence[str]) -> None:
    """Raises for fields to keep that the output has of its own."""
    taken = [name for name in names if name in (*OWN_FIELDS, *_COLUMNS_OF_TRUNCATED, "embedding")]
    if taken:
        raise InvalidInput(
            f"the output has a {taken[0]} of its own: rename the field in your rows, or keep "
            "others",
            param="keep",
            actual=taken[0],
        )


def check_places(outputs: Sequence[Path], bad: Path) -> None:
    """Raises for files that could not be written at the end of the job, or over each other."""
    for path in (*outputs, bad):
        if path.is_dir():
            raise InvalidInput(
                f"{path} is a folder, and would be written as a file",
                param="bad" if path == bad else "out",
                actual=str(path),
            )
    if bad.resolve() in [path.resolve() for path in outputs]:
        raise InvalidInput(
            f"{bad} would be written as an output and with the bad rows",
            param="bad",
            actual=str(bad),
        )


def outputs_of(path: Path) -> list[Path]:
    """The files of an output, the one that it is named by last."""
    return [rows_path(path), path] if path.suffix == ".npy" else [path]


def rows_path(path: Path) -> Path:
    """Where the ids and spans of an .npy file's vectors stand: a line each."""
    return path.with_suffix(".rows.jsonl")


def write_output(
    path: Path, parts: Parts, numbers: Sequence[int], *, form: Form, beside: Path
) -> None:
    """Puts the parts together, the vectors in the form asked for. Each file appears whole."""
    _WRITERS[path.suffix](path, parts, numbers, form, beside)


def write_bad_rows(path: Path, parts: Parts, numbers: Sequence[int], *, beside: Path) -> None:
    """The rows that could not be embedded, with the reason; no file if there are none."""
    bad = [row for number in numbers for row in parts.bad_rows(number)]
    if not bad:
        path.unlink(missing_ok=True)
        return
    if beside.stat().st_dev != path.parent.stat().st_dev:
        beside = path.parent  # nothing can be moved from one disk to another at once
    with whole_file(path, beside) as file:
        for row in bad:
            file.write(_line(row))


def _write_npy(path: Path, parts: Parts, numbers: Sequence[int], form: Form, beside: Path) -> None:
    with whole_file(rows_path(path), beside) as file:
        for number in numbers:
            for row in parts.rows(number):
                file.write(_line(_flat(row)))
    empty = _empty(parts, numbers, form)
    with whole_file(path, beside) as file:
        shape = (sum(len(parts.vectors(number)) for number in numbers), empty.shape[1])
        header = {"descr": empty.dtype.str, "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call]
        for number in numbers:
            file.write(form(parts.vectors(number)).tobytes())


def _write_jsonl(
    path: Path, parts: Parts, numbers: Sequence[int], form: Form, beside: Path
) -> None:
    import orjson

    with whole_file(path, beside) as file:
        for number in numbers:
            vectors = form(parts.vectors(number))
            for row, vector in zip(parts.rows(number), vectors, strict=True):
                # orjson writes the shortest digits that give the same number again.
                options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
                file.write(orjson.dumps({**_flat(row), "embedding": vector}, option=options))


def _write_parquet(
    path: Path, parts: Parts, numbers: Sequence[int], form: Form, beside: Path
) -> None:
    arrow, parquet = need("pyarrow", "writing Parquet"), need("pyarrow.parquet", "writing Parquet")
    every = (row for number in numbers for row in parts.rows(number))
    kinds = {"id": str} | _kinds({**row["kept"], "id": row["id"]} for row in every)
    empty = _empty(parts, numbers, form)
    of_kind = {str: arrow.string(), int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_()}
    item = arrow.from_numpy_dtype(empty.dtype)
    schema = arrow.schema(
        [
            ("id", of_kind[kinds["id"]]),
            ("chunk", arrow.int32()),
            *((name, arrow.int64()) for name in ("start", "end", "tokens", "tokens_embedded")),
            ("truncated", arrow.bool_()),
            *((name, arrow.int64()) for name in _COLUMNS_OF_TRUNCATED),
            *((name, of_kind[kind]) for name, kind in kinds.items() if name != "id"),
            ("embedding", arrow.list_(arrow.field("item", item, nullable=False), empty.shape[1])),
        ]
    )
    with (
        whole_file(path, beside) as file,
        parquet.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        for number in numbers:
            rows = [_flat(row) for row in parts.rows(number)]
            columns = [
                arrow.array(_column(rows, name, kinds.get(name)), schema.field(name).type)
                for name in schema.names[:-1]
            ]
            flat = arrow.array(form(parts.vectors(number)).ravel(), item)
            columns.append(arrow.FixedSizeListArray.from_arrays(flat, type=schema.field(-1).type))
            writer.write_table(arrow.table(columns, schema=schema))


_Writer = Callable[[Path, Parts, Sequence[int], Form, Path], None]
_WRITERS: Mapping[str, _Writer] = {
    ".npy": _write_npy,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}


def _empty(parts: Parts, numbers: Sequence[int], form: Form) -> NDArray[Any]:
    """No vectors, of the output's type and width."""
    return form(parts.vectors(numbers[0])[:0] if numbers else np.empty((0, 0), np.float32))


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with what was kept beside its own fields, which come first where names are alike."""
    own = {name: row[name] for name in (*_COLUMNS, *_COLUMNS_OF_TRUNCATED)}
    return {**{name: value for name, value in row["kept"].items() if name not in own}, **own}


def _kinds(rows: Iterator[Mapping[str, Any]]) -> dict[str, type]:
    """The one type of each field's values; text where they differ, or have no type of a column."""
    found: dict[str, set[type]] = {}
    for row in rows:
        for name, value in row.items():
            found.setdefault(name, set()).add(_kind(value))
    return {name: _common(kinds - {type(None)}) for name, kinds in found.items()}


class _Wide(int):
    """Whole numbers of 64 bits that a float may not hold."""


def _kind(value: Any) -> type:
    if type(value) is int and abs(value) > EXACT:
        return _Wide if -(2**63) <= value < 2**63 else str
    return type(value)


def _common(kinds: set[type]) -> type:
    if kinds == {int, float}:
        return float
    if _Wide in kinds and kinds <= {int, _Wide}:
        return int
    (only,) = kinds if len(kinds) == 1 else (str,)
    return only if only in (str, int, float, bool) else str


def _column(rows: Sequence[Mapping[str, Any]], name: str, kind: type | None) -> list[Any]:
    values = [row.get(name) for row in rows]
    return values if kind is None else [_as_kind(value, kind) for value in values]


def _as_kind(value: Any, kind: type) -> Any:
    if value is None or isinstance(value, kind):
        return value
    return kind(value) if kind is float else json.dumps(value)


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"
