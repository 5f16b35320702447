"""Real documents for training and evaluation: read, and split so that none is on both sides."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import InvalidInput

DATA_FILE = "data.json"
"""Beside a trained model: which documents it was trained on, and which were held out."""

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".html")


@dataclass(frozen=True)
class Document:
    name: str  # unique within its corpus
    title: str  # "" where there is none
    body: str
    query: str = ""  # what it alone should answer, and does not hold itself


def read_documents(path: Path) -> list[Document]:
    """What `documents_in` finds, which must be something."""
    documents = documents_in(path)
    if not documents:
        raise no_text(path, param="data")
    return documents


def documents_in(path: Path) -> list[Document]:
    """A folder of text files (gzipped ones too), a JSONL file or a Parquet file; without those
    that are empty.

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
    return [document for document in found if document.body.strip()]


def no_text(*paths: Path, param: str) -> InvalidInput:
    names, verb = " and ".join(map(str, paths)), "holds" if len(paths) == 1 else "hold"
    return InvalidInput(f"{names} {verb} no text", code="no_documents", param=param)


def held_out(documents: Sequence[Document], share: float = 0.2) -> list[Document]:
    """The part that no training touches. It depends on each document's own title and text alone, so
    that a corpus that grows, or is read on another machine, moves none to the other side."""
    return [document for document in documents if _position(document) < share]


def for_training(documents: Sequence[Document], share: float = 0.2) -> list[Document]:
    """All that `held_out` leaves."""
    return [document for document in documents if _position(document) >= share]


def training_parts(
    sources: Mapping[str, Sequence[Document]], share: float = 0.2
) -> dict[str, list[Document]]:
    """What is trained on, by source: a text once over all of them for each query that it has, and
    none that any of them holds out under another title."""
    kept_away = {one.body for documents in sources.values() for one in held_out(documents, share)}
    seen: set[tuple[str, str]] = set()
    parts: dict[str, list[Document]] = {}
    for name, documents in sources.items():
        parts[name] = []
        for document in for_training(documents, share):
            asked = (document.body, document.query)
            if document.body not in kept_away and asked not in seen:
                seen.add(asked)
                parts[name].append(document)
    return parts


def texts_of(sources: Iterable[Sequence[Document]]) -> list[str]:
    """Each text once, however many queries it has."""
    return list(dict.fromkeys(one.body for documents in sources for one in documents))


def fingerprint(documents: Iterable[Document]) -> str:
    """What identifies these very texts, in any order."""
    digests = sorted(_digest(document) for document in documents)
    return hashlib.sha256(b"".join(digests)).hexdigest()


def digest_in_order(sources: Iterable[Sequence[Document]]) -> str:
    """What identifies these documents, their order and their queries: all that a run draws from."""
    digest = hashlib.sha256()
    for documents in sources:
        digest.update(len(documents).to_bytes(8))
        for one in documents:
            digest.update(_digest(one) + hashlib.sha256(one.query.encode()).digest())
    return digest.hexdigest()


def _digest(document: Document) -> bytes:
    return hashlib.sha256(f"{document.title}\0{document.body}".encode()).digest()


def _position(document: Document) -> float:
    """Where the document lies between 0 and 1."""
    return int.from_bytes(_digest(document)[:8]) / 2**64


def _from_folder(folder: Path) -> Iterator[Document]:
    named = (path for path in sorted(folder.rglob("*")) if _suffix(path) in TEXT_SUFFIXES)
    yield from _from_files((path for path in named if path.is_file()), folder)


def _from_files(files: Iterable[Path], folder: Path | None = None) -> Iterator[Document]:
    for file in files:
        name = str(file.relative_to(folder)) if folder else file.name
        yield Document(name, "", read_text(file))


def read_text(file: Path, *, errors: str = "strict") -> str:
    """A text file, gzipped or not; `errors` as in `bytes.decode`."""
    try:
        return _content(file).decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise _invalid(
            f"{file} is not text in UTF-8: byte {error.start} does not belong there", error.start
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
    """The suffix below a .gz."""
    return Path(file.stem).suffix if file.suffix == ".gz" else file.suffix


def _json_lines(path: Path) -> Iterator[object]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield json.loads(line.decode("utf-8"))
            except UnicodeDecodeError as error:
                where = f"byte {error.start} does not belong there"
                raise _invalid(
                    f"{path}, line {number}, is not text in UTF-8: {where}", number
                ) from None
            except (ValueError, RecursionError) as error:
                raise _invalid(f"{path}, line {number}, is not JSON: {error}", number) from error


def _parquet_rows(path: Path) -> Iterator[object]:
    try:
        from pyarrow import parquet  # type: ignore[import-not-found]
    except ImportError as error:
        raise InvalidInput(
            "reading Parquet needs pyarrow: pip install pyarrow", code="missing_package"
        ) from error
    try:
        for batch in parquet.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    except ValueError as error:  # pyarrow's own errors are of this kind
        raise _invalid(f"{path} is not a usable Parquet file: {error}", path.name) from error


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
        if not _is_unicode(document.title + document.body + document.query):
            raise _invalid(f"row {index} of {source} has half of a surrogate pair", index)
        yield document


def _is_unicode(text: str) -> bool:
    """JSON can hold half of a surrogate pair, which stands for no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _invalid(message: str, actual: int | str) -> InvalidInput:
    return InvalidInput(message, code="invalid_data", param="data", actual=actual)
