"""Real documents for training and evaluation: read, and split so that none is on both sides."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import InvalidInput

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".html")


@dataclass(frozen=True)
class Document:
    name: str  # unique within its corpus
    title: str  # "" where there is none
    body: str
    query: str = ""  # what it alone should answer, and does not hold itself


def read_documents(path: Path) -> list[Document]:
    """A folder of text files (gzipped ones too), a JSONL file or a Parquet file.

    JSONL and Parquet rows have a "text", and may have a "title", a "query" and a "name".
    """
    if path.is_dir():
        found = list(_from_folder(path))
    elif path.suffix == ".jsonl":
        found = list(_from_rows(_json_lines(path), path.name))
    elif path.suffix == ".parquet":
        found = list(_from_rows(_parquet_rows(path), path.name))
    else:
        found = list(_from_files([path]))
    documents = [document for document in found if document.body.strip()]
    if not documents:
        raise InvalidInput(f"{path} holds no text", code="no_documents", param="data")
    return documents


def held_out(documents: Sequence[Document], share: float = 0.2) -> list[Document]:
    """The part that no training touches. It depends on each document's own text alone, so that a
    corpus that grows, or is read on another machine, moves none of them to the other side."""
    return [document for document in documents if _position(document) < share]


def for_training(documents: Sequence[Document], share: float = 0.2) -> list[Document]:
    """All that `held_out` leaves."""
    return [document for document in documents if _position(document) >= share]


def fingerprint(documents: Iterable[Document]) -> str:
    """What identifies these very texts, in any order."""
    digests = sorted(_digest(document) for document in documents)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _digest(document: Document) -> bytes:
    return hashlib.sha256(f"{document.title}\0{document.body}".encode()).digest()


def _position(document: Document) -> float:
    """Where the document lies between 0 and 1."""
    return int.from_bytes(_digest(document)[:8]) / 2**64


def _from_folder(folder: Path) -> Iterator[Document]:
    files = (file for file in sorted(folder.rglob("*")) if _suffix(file) in TEXT_SUFFIXES)
    yield from _from_files(files, folder)


def _from_files(files: Iterable[Path], folder: Path | None = None) -> Iterator[Document]:
    for file in files:
        name = str(file.relative_to(folder)) if folder else file.name
        yield Document(name, "", read_text(file))


def read_text(file: Path) -> str:
    data = file.read_bytes()
    if file.suffix == ".gz":
        data = gzip.decompress(data)
    return data.decode("utf-8", errors="replace")


def _suffix(file: Path) -> str:
    """The suffix below a .gz."""
    return Path(file.stem).suffix if file.suffix == ".gz" else file.suffix


def _json_lines(path: Path) -> Iterator[object]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise InvalidInput(
                    f"{path}, line {number}, is not JSON: {error}",
                    code="invalid_data",
                    param="data",
                    actual=number,
                ) from error


def _parquet_rows(path: Path) -> Iterator[object]:
    try:
        from pyarrow import parquet  # type: ignore[import-not-found]
    except ImportError as error:
        raise InvalidInput(
            "reading Parquet needs pyarrow: pip install pyarrow", code="missing_package"
        ) from error
    for batch in parquet.ParquetFile(path).iter_batches():
        yield from batch.to_pylist()


def _from_rows(rows: Iterable[object], source: str) -> Iterator[Document]:
    for index, row in enumerate(rows):
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise InvalidInput(
                f'row {index} of {source} has no "text"', code="invalid_data", param="data"
            )
        yield Document(
            name=str(row.get("name", index)),
            title=str(row.get("title") or ""),
            body=row["text"],
            query=str(row.get("query") or ""),
        )
