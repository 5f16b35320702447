"""Documents for training and evaluation: reading them, and splitting them.

No document is on both sides of the split.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import InvalidInput
from engine.text.unicode import lone_surrogate

DATA_FILE = "data.json"
"""Beside a trained model: which documents it was trained on, and which were held out."""

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".html")


@dataclass(frozen=True)
class Document:
    name: str  # unique within its corpus
    title: str  # "" if it has none
    body: str
    query: str = ""  # this document alone should answer it, and its body does not contain it


def read_documents(path: Path) -> list[Document]:
    """The documents that `documents_in` finds; an error if there are none."""
    documents = documents_in(path)
    if not documents:
        raise no_text(path, param="data")
    return documents


def documents_in(path: Path) -> list[Document]:
    """Documents of a folder of text files (also gzipped), of a JSONL file or of a Parquet file.

    JSONL and Parquet rows have a "text", and may have a "title", a "query" and a "name". Empty
    documents are left out.
    """
    if path.is_dir():
        found = list(_from_folder(path))
    elif path.suffix == ".jsonl":
        found = list(_from_rows(_json_lines(path), path.name))
    elif path.suffix == ".parquet":
        found = list(_from_rows(_parquet_rows(path), path.name))
    else:
        found = list(_from_files([path]))
    return [document for document in found if document.body.strip()]


def no_text(*paths: Path, param: str) -> InvalidInput:
    names, verb = " and ".join(map(str, paths)), "holds" if len(paths) == 1 else "hold"
    return InvalidInput(f"{names} {verb} no text", code="no_documents", param=param)


def held_out(documents: Sequence[Document], share: float = 0.2) -> list[Document]:
    """The part that no training reads.

    The side of a document depends only on its own title and text: it stays the same when the corpus
    grows or is read on another machine.
    """
    return [document for document in documents if _position(document) < share]


def for_training(documents: Sequence[Document], share: float = 0.2) -> list[Document]:
    """The documents that are not held out."""
    return [document for document in documents if _position(document) >= share]


def training_parts(
    sources: Mapping[str, Sequence[Document]], share: float = 0.2
) -> dict[str, list[Document]]:
    """The documents to train on, by source: each text once for each query that it has.

    Texts that any source holds out under another title are left out.
    """
    excluded = {one.body for documents in sources.values() for one in held_out(documents, share)}
    seen: set[tuple[str, str]] = set()
    parts: dict[str, list[Document]] = {}
    for name, documents in sources.items():
        parts[name] = []
        for document in for_training(documents, share):
            asked = (document.body, document.query)
            if document.body not in excluded and asked not in seen:
                seen.add(asked)
                parts[name].append(document)
    return parts


def texts_of(sources: Iterable[Sequence[Document]]) -> list[str]:
    """The texts, without repetition."""
    return list(dict.fromkeys(one.body for documents in sources for one in documents))


def fingerprint(documents: Iterable[Document]) -> str:
    """A hash of the documents' titles and texts, whatever their order."""
    digests = sorted(_digest(document) for document in documents)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def digest_in_order(sources: Iterable[Sequence[Document]]) -> str:
    """A hash of the documents, their order and their queries: all that a run draws from."""
    digest = hashlib.sha256()
    for documents in sources:
        digest.update(len(documents).to_bytes(8))
        for one in documents:
            digest.update(_digest(one) + hashlib.sha256(one.query.encode()).digest())
    return digest.hexdigest()


def _digest(document: Document) -> bytes:
    return hashlib.sha256(f"{document.title}\0{document.body}".encode()).digest()


def _position(document: Document) -> float:
    """A number between 0 and 1 that depends on the document alone."""
    return int.from_bytes(_digest(document)[:8]) / 2**64


def _from_folder(folder: Path) -> Iterator[Document]:
    named = (path for path in sorted(folder.rglob("*")) if _suffix(path) in TEXT_SUFFIXES)
    yield from _from_files((path for path in named if path.is_file()), folder)


def _from_files(files: Iterable[Path], folder: Path | None = None) -> Iterator[Document]:
    for file in files:
        name = str(file.relative_to(folder)) if folder else file.name
        yield Document(name, "", read_text(file))


def read_text(file: Path, *, errors: str = "strict") -> str:
    """The text of a file, gzipped or not; `errors` is that of `bytes.decode`."""
    try:
        return _content(file).decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise _invalid(
            f"{file} is not UTF-8 text: byte {error.start} is invalid", error.start
        ) from None


def _content(file: Path) -> bytes:
    data = file.read_bytes()
    if file.suffix != ".gz":
        return data
    try:
        return gzip.decompress(data)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise _invalid(f"{file} cannot be decompressed: {error}", file.name) from error


def _suffix(file: Path) -> str:
    """The suffix, without .gz."""
    return Path(file.stem).suffix if file.suffix == ".gz" else file.suffix


def _json_lines(path: Path) -> Iterator[object]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield json.loads(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise _invalid(
                    f"{path}, line {number}, is not UTF-8 text: byte {error.start} is invalid",
                    number,
                ) from None
            except (ValueError, RecursionError) as error:
                raise _invalid(f"{path}, line {number}, is not JSON: {error}", number) from error


def _parquet_rows(path: Path) -> Iterator[object]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise InvalidInput(
            "reading Parquet needs pyarrow: pip install pyarrow", code="missing_package"
        ) from error
    try:
        for batch in parquet.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    except ValueError as error:  # pyarrow's errors are ValueErrors
        raise _invalid(f"{path} cannot be read as Parquet: {error}", path.name) from error


def _from_rows(rows: Iterable[object], source: str) -> Iterator[Document]:
    for index, row in enumerate(rows):
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise _invalid(f'row {index} of {source} has no "text"', index)
        document = Document(
            name=str(row.get("name", index)),
            title=str(row.get("title") or ""),
            body=row["text"],
            query=str(row.get("query") or ""),
        )
        # JSON can hold half of a surrogate pair.
        if lone_surrogate(document.title + document.body + document.query) is not None:
            raise _invalid(f"row {index} of {source} has half of a surrogate pair", index)
        yield document


def _invalid(message: str, actual: int | str) -> InvalidInput:
    return InvalidInput(message, code="invalid_data", param="data", actual=actual)
