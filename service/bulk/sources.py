"""Rows of a corpus: folders, globs, documents, JSONL, CSV, Parquet, URLs, standard input.

The same sources give the same rows in the same order, which is what resuming rests on.
"""

from __future__ import annotations

import csv
import glob
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, TypeAlias, get_args

import orjson

from engine.errors import InvalidInput
from engine.text.titles import is_visible
from service.bulk.remote import RemoteFile, find_remote, is_url
from service.bulk.rows import BadRow, InputRow, TextRow
from service.readers.extra import need
from service.readers.extracted import Unreadable
from service.readers.files import files_in, read_bytes, read_content, readable_name

Format: TypeAlias = Literal["auto", "jsonl", "csv", "tsv", "parquet", "lines", "text"]
FORMATS = get_args(Format)

STDIN = "-"
MAX_LINE_BYTES = 256 * 1024 * 1024
"""Of a line of JSONL or text. A longer one is a bad row, and is not kept in memory."""

_FORMAT_OF_SUFFIX: Mapping[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Which fields of a row are what."""

    text: str = "text"
    id: str = "id"
    title: str | None = None
    keep: tuple[str, ...] = ()

    @property
    def asked_for(self) -> set[str]:
        """Those that rows need not have."""
        return {*self.keep, *([self.title] if self.title else [])}

    @property
    def all(self) -> list[str]:
        return [self.text, self.id, *([self.title] if self.title else []), *self.keep]


@dataclass(frozen=True)
class Source:
    """A file, and what its rows are called by."""

    path: Path | RemoteFile | None  # None for standard input
    name: str
    format: Format

    @property
    def num_bytes(self) -> int:
        if self.path is None:
            return 0
        return self.path.stat().st_size if isinstance(self.path, Path) else self.path.num_bytes


def find_sources(given: Sequence[str], form: Format = "auto") -> list[Source]:
    """The files that these paths, folders and globs name, in order."""
    found = [source for one in given for source in _sources(one, form)]
    if given.count(STDIN) > 1:
        raise InvalidInput("standard input can be read only once", param="from")
    return found


def _sources(given: str, form: Format) -> Iterator[Source]:
    if given == STDIN:
        yield Source(None, "stdin", "jsonl" if form == "auto" else form)
        return
    path = Path(given)
    files: Sequence[tuple[Path | RemoteFile, str]]
    if is_url(given):
        files = find_remote(given)
    elif path.is_dir():
        files = [(file, file.relative_to(path).as_posix()) for file in files_in(path)]
    elif path.exists():
        files = [(path, given)]
    else:
        named = sorted(glob.glob(given, recursive=True)) if glob.has_magic(given) else []
        files = [(Path(name), name) for name in named if Path(name).is_file()]
    if not files:
        raise InvalidInput(f"{given} names no file", code="no_files", param="from", actual=given)
    for file, name in files:
        yield Source(file, readable_name(name), _format_of(name) if form == "auto" else form)


def _format_of(name: str) -> Format:
    return _FORMAT_OF_SUFFIX.get(PurePosixPath(name).suffix.lower(), "text")


def total_bytes(sources: Sequence[Source]) -> int | None:
    """Of all files; None if there is no telling."""
    if any(source.path is None for source in sources):
        return None
    return sum(source.num_bytes for source in sources)


def rows_of(sources: Sequence[Source], fields: Fields) -> Iterator[InputRow]:
    for source in sources:
        yield from _ROWS[source.format](source, fields)


def _document(source: Source, fields: Fields) -> Iterator[InputRow]:
    """The whole file as one text."""
    try:
        content = _content(source)
        extracted = read_content(source.name, content)
    except Unreadable as error:
        yield BadRow(id=source.name, code=error.code, reason=error.message)
    except OSError as error:
        yield BadRow(id=source.name, code="unreadable", reason=error.strerror or str(error))
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
                yield name, BadRow(id=name, code="line_too_long", reason=reason), size
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
        return sys.stdin.buffer
    return source.path.open("rb") if isinstance(source.path, Path) else source.path.open()


def _content(source: Source) -> bytes:
    if source.path is None:
        return sys.stdin.buffer.read()
    return read_bytes(source.path) if isinstance(source.path, Path) else source.path.read()


def _texts(source: Source, fields: Fields) -> Iterator[InputRow]:
    """Each line as a text."""
    for name, line, size in _lines(source):
        if isinstance(line, BadRow):
            yield line
        else:
            yield _row({fields.text: line}, name, fields, size)


def _jsonl(source: Source, fields: Fields) -> Iterator[InputRow]:
    for name, line, size in _lines(source):
        if isinstance(line, BadRow):
            yield line
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = f"the line is not JSON: {error}"
            yield BadRow(id=name, code="invalid_json", reason=reason, num_bytes=size)
            continue
        if isinstance(found, str):
            found = {fields.text: found}
        if not isinstance(found, dict):
            reason = f"a row must be an object or a text, got {type(found).__name__}"
            yield BadRow(id=name, code="invalid_row", reason=reason, num_bytes=size)
            continue
        yield _row(found, name, fields, size)


def _separated(delimiter: str) -> Callable[[Source, Fields], Iterator[InputRow]]:
    def rows(source: Source, fields: Fields) -> Iterator[InputRow]:
        csv.field_size_limit(MAX_LINE_BYTES)
        # Invalid bytes come through as surrogates, which the row is then refused for.
        text = io.TextIOWrapper(
            _opened(source), encoding="utf-8-sig", errors="surrogateescape", newline=""
        )
        with text:
            reader = csv.DictReader(text, delimiter=delimiter)
            if fields.text not in (reader.fieldnames or ()):
                raise _no_column(source, fields.text, reader.fieldnames or ())
            while True:
                name = f"{source.name}:{reader.line_num + 1}"
                try:
                    found = next(reader, None)
                except csv.Error as error:
                    yield BadRow(id=name, code="invalid_csv", reason=str(error))
                    continue
                if found is None:
                    return
                size = sum(len(value or "") + 1 for value in found.values() if value is not None)
                yield _row(found, name, fields, size)

    return rows


def _parquet(source: Source, fields: Fields) -> Iterator[InputRow]:
    parquet = need("pyarrow.parquet", "reading Parquet")
    try:
        file = parquet.ParquetFile(
            source.path if isinstance(source.path, Path) else _opened(source)
        )
    except ValueError as error:  # pyarrow's errors are ValueErrors
        raise InvalidInput(f"{source.name} is not Parquet: {error}", param="from") from None
    with file:
        names = file.schema_arrow.names
        if fields.text not in names:
            raise _no_column(source, fields.text, names)
        wanted = [name for name in dict.fromkeys(fields.all) if name in names]
        size = source.num_bytes // max(1, file.metadata.num_rows)
        number = 0
        for batch in file.iter_batches(batch_size=256, columns=wanted):
            for found in batch.to_pylist():
                number += 1
                yield _row(found, f"{source.name}:{number}", fields, size)


def _no_column(source: Source, name: str, known: Sequence[str]) -> InvalidInput:
    return InvalidInput(
        f"{source.name} has no column {name!r}; it has {', '.join(map(str, known)) or 'none'}",
        code="no_column",
        param="text_field",
        limit=", ".join(map(str, known)),
        actual=name,
    )


def _row(found: Mapping[str, Any], name: str, fields: Fields, size: int) -> InputRow:
    """A row with a text, or the reason why it is none."""
    own = found.get(fields.id)
    row_id = _plain(own) if isinstance(own, str | int) and not isinstance(own, bool) else name
    if _is_broken(row_id):
        row_id = name
    text = found.get(fields.text)
    problem = _problem(found, text, fields)
    if problem is not None:
        return BadRow(id=row_id, code=problem[0], reason=problem[1], num_bytes=size)
    assert isinstance(text, str), "a row without one has a problem"
    title = found.get(fields.title) if fields.title else None
    assert title is None or isinstance(title, str), "a row with another title has a problem"
    return TextRow(
        id=row_id,
        text=text,
        title=title if title and is_visible(title) else None,
        kept={field: _plain(found.get(field)) for field in fields.keep},
        num_bytes=size,
    )


def _problem(found: Mapping[str, Any], text: object, fields: Fields) -> tuple[str, str] | None:
    if fields.text not in found:
        return "no_text", f"the row has no {fields.text!r}"
    if text is None:
        return "null_text", f"{fields.text!r} is null"
    if not isinstance(text, str):
        return "not_a_text", f"{fields.text!r} must be a text, got {type(text).__name__}"
    if not text.strip():
        return "empty_text", f"{fields.text!r} is empty"
    title = found.get(fields.title) if fields.title else None
    if title is not None and not isinstance(title, str):
        return "not_a_text", f"{fields.title!r} must be a text, got {type(title).__name__}"
    for name in fields.all:
        if _is_broken(found.get(name)):
            return "not_utf8", f"{name!r} is not text in UTF-8"
    return None


def _is_broken(value: Any) -> bool:
    """Whether a text in it has halves of surrogate pairs, which UTF-8 cannot write."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _plain(value: Any) -> Any:
    """A value as every output can write it; others, such as dates and integers of more than 64
    bits, as text."""
    try:
        return orjson.loads(orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATETIME))
    except TypeError:
        is_nested = isinstance(value, dict | list)
        return json.dumps(value, default=str) if is_nested else str(value)


_ROWS: Mapping[str, Callable[[Source, Fields], Iterator[InputRow]]] = {
    "jsonl": _jsonl,
    "csv": _separated(","),
    "tsv": _separated("\t"),
    "parquet": _parquet,
    "lines": _texts,
    "text": _document,
}
