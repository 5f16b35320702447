"""One job: rows in, parts on the disk as they are done, and the output at the end.

Parts end after the same rows in every run, because only the rows decide it. A run that finds parts
of the same job, or pieces of them, continues after them, and writes the same bytes as an
uninterrupted run.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from engine.errors import InvalidInput, shown
from engine.execution.input_checks import check_dimensions
from engine.model.quantized import check_output_dtype, quantize
from engine.platform.files import sync
from engine.platform.locks import writers_lock
from engine.text.chunking import contexts, settled, shares_of
from engine.types import Context, ModelInfo, OutputDtype
from service.bulk.fields import Fields
from service.bulk.output import (
    check_kept,
    check_output,
    check_places,
    outputs_of,
    write_bad_rows,
    write_output,
)
from service.bulk.parts import (
    PART_ROWS,
    PART_TOKENS,
    Parts,
    split,
)
from service.bulk.pieces import Part, Piece, Stretch
from service.bulk.rows import InputRow, RowOptions, TextRow
from service.bulk.source_rows import rows_of
from service.bulk.sources import Source, total_bytes
from service.bulk.space import check_space, told_if_full
from service.files import whole_file

_VERSION = 3
_CLAIM = "job.json"
"""Says whose the unfinished work is that lies beside it."""

_OF_THE_MODEL = ("revision", "calibration", "dtype", "chunk_context")
"""What decides vectors, besides the model's name."""

_log = logging.getLogger(__name__)


class OutputExists(InvalidInput):
    """The output is there already, or another job's unfinished work is."""

    code = "output_exists"


@dataclass(frozen=True, kw_only=True)
class BulkJob:
    """What to embed, how, and where to."""

    sources: Sequence[Source]
    fields: Fields
    how: RowOptions
    out: Path
    bad: Path
    dtype: OutputDtype = "float"
    replace: bool = False
    """Whether an output, or another job's unfinished work, may be overwritten."""


@dataclass(kw_only=True)
class BulkProgress:
    """How far a job is. Rows of earlier runs count as done, but not their tokens."""

    texts: int = 0
    vectors: int = 0
    bad: int = 0
    resumed: int = 0
    """Texts and bad rows of earlier runs, which are not read again."""

    tokens: int = 0
    bytes_done: int = 0
    bytes_resumed: int = 0
    """Of these, the bytes of earlier runs, which took this one no time."""

    bytes_total: int | None = None
    absent: set[str] = field(default_factory=set)
    """Fields asked for that no row so far has: misspelt, perhaps."""


class PartEmbedder(Protocol):
    """What turns rows into vectors: one engine, or workers on a cluster."""

    @property
    def model(self) -> ModelInfo: ...

    def embed(self, stretches: Iterable[Stretch], how: RowOptions) -> AsyncIterator[Piece]:
        """Pieces of all stretches as they are done, in any order."""


async def run_job(
    job: BulkJob, embedder: PartEmbedder, report: Callable[[BulkProgress], None] = lambda _: None
) -> BulkProgress:
    """Embeds all rows and writes the output. Run again, it continues where it was killed."""
    work = prepare(job)
    with told_if_full(job.out), writers_lock(work / "lock", str(job.out)):
        info = embedder.model
        check_dimensions(job.how.options.dimensions, info)  # every row would be a bad one
        check_output_dtype(job.dtype, job.how.options, info)
        _check_titles_are_used(job, info.chunk_context)
        _claim(work, job, {name: getattr(info, name) for name in _OF_THE_MODEL})
        dim = job.how.options.dimensions or info.dim
        parts = Parts(work, dim)
        run = _Run(job, parts, dim)
        async for piece in embedder.embed(run.missing(), job.how):
            run.keep(piece)
            report(run.progress)
        write_bad_rows(job.bad, parts, run.numbers, beside=work)
        form = partial(quantize, dtype=job.dtype, model=info)
        write_output(job.out, parts, run.numbers, form=form, beside=work)
        shutil.rmtree(work)
    return run.progress


def prepare(job: BulkJob) -> Path:
    """The folder of a job's unfinished work, if the job may write its output."""
    check_output(job.out)
    check_kept(job.fields.keep)
    _check_titles_are_used(job)
    work = _work_folder(job.out)
    outputs = outputs_of(job.out)
    check_places(outputs, job.bad)
    there = [path for path in (*outputs, job.bad) if path.exists()]
    if there and not _claimed(work) and not job.replace:
        raise OutputExists(
            f"{there[0]} exists; give another name, or --replace to overwrite it", param="out"
        )
    if not job.replace and (others := _differences(work, _fingerprint(job, {}))):
        raise _another_jobs(work, others)
    work.mkdir(parents=True, exist_ok=True)
    job.bad.parent.mkdir(parents=True, exist_ok=True)
    return work


def _check_titles_are_used(job: BulkJob, own: Context | None = None) -> None:
    """Refuses a field of titles that no vector would use. What the model's own context is may not
    be known yet."""
    chunking = job.how.chunking
    context = own if chunking is None else chunking.context or own
    if job.fields.title is None or chunking is None or context is None:
        return
    if shares_of(settled(chunking, context)).opening:
        return
    using = contexts(titled=True)
    raise InvalidInput(
        f"context {context} uses no title, so the field {shown(job.fields.title)} has no effect; "
        f"contexts that use titles: {using}",
        code="unused_title",
        param="title_field",
        limit=using,
        actual=context,
    )


def own_files(out: Path, bad: Path) -> list[Path]:
    """What a job writes, which is no part of a folder that it reads."""
    return [*outputs_of(out), bad, _work_folder(out)]


def _work_folder(out: Path) -> Path:
    return out.with_name(f"{out.name}.partial")


def _claim(work: Path, job: BulkJob, weights: dict[str, Any]) -> None:
    """Marks the unfinished work as this job's, or refuses another job's."""
    wanted = _fingerprint(job, weights)
    others = _differences(work, wanted)
    if others and not job.replace:
        raise _another_jobs(work, others)
    if others or not _claimed(work):
        for old in work.glob("[0-9]*"):
            old.unlink()
    sync(work.parent)  # parts are of no use on the disk if their folder is not
    with whole_file(work / _CLAIM) as file:
        file.write(json.dumps(wanted, indent=1).encode())


def _claimed(work: Path) -> dict[str, Any]:
    """What the job says of itself whose work lies there; nothing if that cannot be told."""
    try:
        found = json.loads((work / _CLAIM).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _differences(work: Path, wanted: dict[str, Any]) -> list[str]:
    """What the unfinished work there has otherwise, if it is known whose it is."""
    found = _claimed(work)
    if not found:
        return []
    return [name for name in wanted if found.get(name) != json.loads(json.dumps(wanted[name]))]


def _another_jobs(work: Path, names: Sequence[str]) -> OutputExists:
    return OutputExists(
        f"{work} has the unfinished work of another job ({', '.join(names)} differ); "
        "finish that one first, or discard it with --replace",
        param="out",
    )


def _fingerprint(job: BulkJob, weights: dict[str, Any]) -> dict[str, Any]:
    """All that decides the parts, besides the rows themselves."""
    chunking = job.how.chunking
    return {
        "version": _VERSION,
        "model": job.how.model,
        **weights,
        "options": asdict(job.how.options),
        "chunking": chunking and [type(chunking).__name__, asdict(chunking)],
        "fields": asdict(job.fields),
        "part": [PART_TOKENS, PART_ROWS],
    }


def _filled(rows: Sequence[InputRow], title_field: str | None) -> set[str]:
    """Fields asked for that any of these rows has."""
    texts = [row for row in rows if isinstance(row, TextRow)]
    kept = {name for row in texts for name, value in row.kept.items() if value is not None}
    if title_field is not None and any(row.title is not None for row in texts):
        kept.add(title_field)
    return kept


@dataclass
class _UnderWay:
    part: Part
    rows_left: int


class _Run:
    """What a run finds done, what it gives out, and what becomes of that."""

    def __init__(self, job: BulkJob, parts: Parts, dim: int) -> None:
        self._job = job
        self._parts = parts
        self._dim = dim
        self._under_way: dict[int, _UnderWay] = {}
        self._counting = Lock()  # rows are read in a thread
        self.numbers: list[int] = []
        """The numbers of all parts, in order."""

        self.progress = BulkProgress(
            bytes_total=total_bytes(job.sources), absent=job.fields.asked_for
        )

    def missing(self) -> Iterator[Stretch]:
        """The rows that no earlier run has embedded, by part."""
        for part in split(rows_of(self._job.sources, self._job.fields)):
            self.numbers.append(part.number)
            if self.progress.absent:
                self.progress.absent -= _filled(part.rows, self._job.fields.title)
            header = self._parts.header(part.number)
            if header is not None and header.digest == part.digest:
                self._count(header.texts, header.vectors, header.bad, part.num_bytes, earlier=True)
            else:
                yield from self._begin(part)

    def keep(self, piece: Piece) -> None:
        self._parts.keep(piece)
        self._count_piece(piece)
        under_way = self._under_way[piece.number]
        under_way.rows_left -= piece.num_rows
        _log.info("part %d: rows %d to %d are kept", piece.number, piece.first, piece.end)
        if not under_way.rows_left:
            self._parts.finish(under_way.part)
            del self._under_way[piece.number]

    def _begin(self, part: Part) -> Iterator[Stretch]:
        kept = self._parts.begun(part)
        for piece in kept:
            self._count_piece(piece, earlier=True)
        rows_left = len(part.rows) - sum(piece.num_rows for piece in kept)
        if not rows_left:
            self._parts.finish(part)
            return
        self._check_space(part)
        self._under_way[part.number] = _UnderWay(part, rows_left)
        yield from part.without(kept)

    def _check_space(self, part: Part) -> None:
        progress = self.progress
        if self._under_way or progress.bytes_total is None:
            return
        left = max(1, progress.bytes_total - progress.bytes_done)
        texts = sum(isinstance(row, TextRow) for row in part.rows)  # bad rows have no vectors
        check_space(self._job.out, rows=texts, share=part.num_bytes / left, dim=self._dim)

    def _count_piece(self, piece: Piece, *, earlier: bool = False) -> None:
        self._count(piece.texts, len(piece.vectors), piece.bad, piece.num_bytes, earlier=earlier)
        if not earlier:
            self.progress.tokens += piece.tokens

    def _count(self, texts: int, vectors: int, bad: int, num_bytes: int, *, earlier: bool) -> None:
        with self._counting:
            self.progress.texts += texts
            self.progress.vectors += vectors
            self.progress.bad += bad
            self.progress.bytes_done += num_bytes
            if earlier:
                self.progress.resumed += texts + bad
                self.progress.bytes_resumed += num_bytes
