"""Rows of a corpus: documents, JSONL, CSV, Parquet, lines.

The same sources give the same rows in the same order, which is what resuming rests on.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from engine.errors import InvalidInput
from engine.platform.files import standard_input
from service.bulk.fields import Fields, row_of
from service.bulk.remote import path_of
from service.bulk.rows import BadRow, InputRow, TextRow
from service.bulk.sources import Source, total_bytes
from service.given_values import named
from service.readers.extra import need
from service.readers.extracted import Unreadable, check_width
from service.readers.files import MAX_FILE_BYTES, check_size, read_bytes, read_content, why_unread
from service.repeated_fields import RepeatedName, each_once

MAX_LINE_BYTES = 256 * 1024 * 1024
"""The longest line of JSONL or text. A longer one is a bad row, and is not kept in memory."""


def rows_of(sources: Sequence[Source], fields: Fields) -> Iterator[InputRow]:
    for source in sources:
        try:
            yield from _ROWS[source.format](source, fields)
        except Unreadable as error:
            size = total_bytes([source]) or 0
            yield BadRow(id=source.name, code=error.code, reason=error.message, num_bytes=size)


def _document(source: Source, fields: Fields) -> Iterator[InputRow]:
    """The whole file as one text."""
    size = 0
    try:
        size = source.num_bytes
        content = _content(source)
        extracted = read_content(path_of(source.name), content)
        if not extracted.text.strip():
            raise Unreadable("it has no text", code="empty_text")
    except Unreadable as error:
        yield BadRow(id=source.name, code=error.code, reason=error.message, num_bytes=size)
    except OSError as error:
        reason = why_unread(error)
        yield BadRow(id=source.name, code="unreadable", reason=reason, num_bytes=size)
    else:
        kept = {name: source.name if name == "file" else None for name in fields.keep}
        yield TextRow(
            id=source.name,
            text=extracted.text,
            title=extracted.title,
            kept={name: extracted.text if name == fields.text else kept[name] for name in kept},
            num_bytes=len(content),
        )


def _lines(source: Source) -> Iterator[tuple[str, str | BadRow, int]]:
    """Lines that are not blank, decoded, with their ids and sizes."""
    with _opened(source) as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            size = len(line)
            name = f"{source.name}:{number}"
            if size > MAX_LINE_BYTES:
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE_BYTES)
                    size += len(line)
                reason = f"the line has {size} bytes, the limit is {MAX_LINE_BYTES}"
                row = BadRow(id=name, code="line_too_long", reason=reason, num_bytes=size)
                yield name, row, size
                continue
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            try:
                text = line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                reason = f"the line is not text in UTF-8: invalid byte at {error.start}"
                yield name, BadRow(id=name, code="not_utf8", reason=reason, num_bytes=size), size
                continue
            if text.strip():
                yield name, text, size


def _opened(source: Source) -> BinaryIO:
    if source.path is None:
        return standard_input()
    if not isinstance(source.path, Path):
        return source.path.open()
    with _refusals_of_files():
        return source.path.open("rb")


@contextmanager
def _refusals_of_files() -> Iterator[None]:
    """A file of this machine that cannot be opened is reported. If the network fails, or a disk
    within a file, the job ends instead, to be resumed: all rows that follow would be lost."""
    try:
        yield
    except OSError as error:
        raise Unreadable(why_unread(error)) from error


def _content(source: Source) -> bytes:
    if source.path is None:
        content = standard_input().read(MAX_FILE_BYTES + 1)
        check_size(len(content))
        return content
    return read_bytes(source.path) if isinstance(source.path, Path) else source.path.read()


def _texts(source: Source, fields: Fields) -> Iterator[InputRow]:
    """Each line as a text."""
    for name, line, size in _lines(source):
        if isinstance(line, BadRow):
            yield line
        else:
            yield row_of({fields.text: line}, name, fields, size)


def _jsonl(source: Source, fields: Fields) -> Iterator[InputRow]:
    for name, line, size in _lines(source):
        if isinstance(line, BadRow):
            yield line
            continue
        try:
            yield _json_row(line, name, fields, size)
        except RecursionError:
            reason = "the line nests too deeply"
            yield BadRow(id=name, code="invalid_json", reason=reason, num_bytes=size)


def _json_row(line: str, name: str, fields: Fields, size: int) -> InputRow:
    try:
        found = json.loads(line, object_pairs_hook=each_once)
    except RepeatedName as error:
        return BadRow(id=name, code="repeated_field", reason=str(error), num_bytes=size)
    except ValueError as error:
        reason = f"the line is not JSON: {error}"
        return BadRow(id=name, code="invalid_json", reason=reason, num_bytes=size)
    if isinstance(found, str):
        found = {fields.text: found}
    if not isinstance(found, dict):
        reason = f"a row must be an object or a text, got {named(found)}"
        return BadRow(id=name, code="invalid_row", reason=reason, num_bytes=size)
    return row_of(found, name, fields, size)


def _separated(delimiter: str) -> Callable[[Source, Fields], Iterator[InputRow]]:
    def rows(source: Source, fields: Fields) -> Iterator[InputRow]:
        csv.field_size_limit(MAX_LINE_BYTES)
        # Invalid bytes come through as surrogates, which the row is then refused for.
        text = io.TextIOWrapper(
            _opened(source), encoding="utf-8-sig", errors="surrogateescape", newline=""
        )
        with text:
            first = text.readline()
            check_width(first.encode("utf-8", "surrogateescape"))
            # Strict, since a quotation mark that is never closed would take in all that follows.
            reader = csv.DictReader(chain([first], text), delimiter=delimiter, strict=True)
            num_columns = len(_csv_columns(reader, source, fields))
            while True:
                name = f"{source.name}:{reader.line_num + 1}"
                try:
                    found: dict[Any, Any] | None = next(reader, None)
                except csv.Error as error:
                    yield BadRow(id=name, code="invalid_csv", reason=_csv_reason(error))
                    continue
                if found is None:
                    return
                size = sum(len(value or "") + 1 for value in found.values() if value is not None)
                beyond = found.pop(None, ())
                if any(map(str.strip, beyond)):
                    # Of a text with a comma and no quotation marks, the rest would be lost.
                    num_cells = num_columns + len(beyond)
                    reason = f"the row has {num_cells} cells, the file {num_columns} columns"
                    yield BadRow(id=name, code="invalid_csv", reason=reason, num_bytes=size)
                    continue
                yield row_of(found, name, fields, size)

    return rows


def _csv_columns(reader: csv.DictReader[str], source: Source, fields: Fields) -> Sequence[str]:
    try:
        names = reader.fieldnames or ()
    except csv.Error as error:
        raise InvalidInput(
            f"the names of {source.name} cannot be read: {_csv_reason(error)}", param="from"
        ) from None
    _check_columns(source, names, fields)
    return names


def _csv_reason(error: csv.Error) -> str:
    reason = str(error)
    is_open = reason == "unexpected end of data"
    return "a quotation mark is never closed" if is_open else reason


def _parquet(source: Source, fields: Fields) -> Iterator[InputRow]:
    parquet = need("pyarrow.parquet", "reading Parquet")
    try:
        file = _parquet_file(parquet, source)
    except ValueError as error:  # pyarrow's errors are ValueErrors
        raise InvalidInput(f"{source.name} is not Parquet: {error}", param="from") from None
    with file:
        names = file.schema_arrow.names
        _check_columns(source, names, fields)
        wanted = [name for name in dict.fromkeys(fields.all) if name in names]
        size = source.num_bytes // max(1, file.metadata.num_rows)
        for number, found in enumerate(_parquet_rows(file, wanted, source), 1):
            yield row_of(found, f"{source.name}:{number}", fields, size)


def _parquet_file(parquet: Any, source: Source) -> Any:
    if not isinstance(source.path, Path):
        return parquet.ParquetFile(_opened(source))
    with _refusals_of_files():
        return parquet.ParquetFile(source.path)


def _parquet_rows(file: Any, wanted: Sequence[str], source: Source) -> Iterator[dict[str, Any]]:
    try:
        for batch in file.iter_batches(batch_size=256, columns=wanted):
            yield from batch.to_pylist()
    except ValueError as error:
        raise InvalidInput(
            f"{source.name} cannot be read to its end: {error}", param="from"
        ) from None


def _check_columns(source: Source, names: Sequence[str], fields: Fields) -> None:
    known = ", ".join(map(str, names))
    if fields.text not in names:
        raise InvalidInput(
            f"{source.name} has no column {fields.text!r}; it has {known or 'none'}",
            code="no_column",
            param="text_field",
            limit=known,
            actual=fields.text,
        )
    for name in fields.all:
        if names.count(name) > 1:  # readers of tables let the last one count
            raise InvalidInput(
                f"{source.name} has more than one column {name!r}; it has {known}",
                code="repeated_column",
                param="from",
                limit=1,
                actual=names.count(name),
            )


_ROWS: Mapping[str, Callable[[Source, Fields], Iterator[InputRow]]] = {
    "jsonl": _jsonl,
    "csv": _separated(","),
    "tsv": _separated("\t"),
    "parquet": _parquet,
    "lines": _texts,
    "text": _document,
}
