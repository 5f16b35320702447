"""One job: rows in, parts on the disk as they are done, and the output at the end.

Parts end after the same rows in every run, because only the rows decide it. A run that finds parts
of the same job goes on after them, and puts together the same bytes as a run that was left alone.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from engine.errors import InvalidInput
from engine.model.quantized import check_output_dtype, quantize
from engine.types import ModelInfo, OutputDtype
from service.bulk.output import (
    check_kept,
    check_output,
    outputs_of,
    write_bad_rows,
    write_output,
)
from service.bulk.parts import (
    PART_ROWS,
    PART_TOKENS,
    EmbeddedPart,
    Part,
    PartHeader,
    Parts,
    split,
)
from service.bulk.rows import RowOptions
from service.bulk.sources import Fields, Source, rows_of, total_bytes
from service.bulk.space import check_space, told_if_full
from service.files import whole_file
from service.locks import writers_lock

_VERSION = 2


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
    bytes_total: int | None = None


class PartEmbedder(Protocol):
    """What turns parts into vectors: one engine, or workers on a cluster."""

    @property
    def model(self) -> ModelInfo: ...

    def embed(self, parts: Iterable[Part], how: RowOptions) -> AsyncIterator[EmbeddedPart]:
        """The parts as they are done, in any order."""


async def run_job(
    job: BulkJob, embedder: PartEmbedder, report: Callable[[BulkProgress], None] = lambda _: None
) -> BulkProgress:
    """Embeds all rows and writes the output. Run again, it goes on where it was killed."""
    work = prepare(job)
    with writers_lock(work / "lock", str(job.out)), told_if_full(job.out):
        info = embedder.model
        check_output_dtype(job.dtype, job.how.options, info)
        _claim(work, job, {"revision": info.revision, "calibration": info.calibration})
        dim = job.how.options.dimensions or info.dim
        parts = Parts(work, dim)
        progress = BulkProgress(bytes_total=total_bytes(job.sources))
        numbers = await _embed_parts(job, embedder, parts, progress, report)
        write_bad_rows(job.bad, parts, numbers, beside=work)
        form = partial(quantize, dtype=job.dtype, model=info)
        write_output(job.out, parts, numbers, form=form, beside=work)
        shutil.rmtree(work)
    return progress


def prepare(job: BulkJob) -> Path:
    """The folder of a job's unfinished work, if the job may write its output."""
    check_output(job.out)
    check_kept(job.fields.keep)
    work = job.out.with_name(f"{job.out.name}.partial")
    there = [path for path in outputs_of(job.out) if path.exists()]
    if there and not work.exists() and not job.replace:
        raise OutputExists(
            f"{there[0]} exists; give another name, or --replace to write it anew", param="out"
        )
    if not job.replace and (others := _differences(work, _fingerprint(job, {}))):
        raise _another_jobs(work, others)
    work.mkdir(parents=True, exist_ok=True)
    return work


def _claim(work: Path, job: BulkJob, weights: dict[str, Any]) -> None:
    """Marks the unfinished work as this job's, or refuses another job's."""
    wanted = _fingerprint(job, weights)
    if others := _differences(work, wanted):
        if not job.replace:
            raise _another_jobs(work, others)
        for old in work.glob("[0-9]*"):
            old.unlink()
    with whole_file(work / "job.json") as file:
        file.write(json.dumps(wanted, indent=1).encode())


def _differences(work: Path, wanted: dict[str, Any]) -> list[str]:
    """What the unfinished work there has otherwise, if there is any."""
    try:
        found = json.loads((work / "job.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [name for name in wanted if found.get(name) != json.loads(json.dumps(wanted[name]))]


def _another_jobs(work: Path, names: Sequence[str]) -> OutputExists:
    return OutputExists(
        f"{work} has the unfinished work of another job ({', '.join(names)} differ); "
        "run that one to its end, or start anew with --replace",
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


async def _embed_parts(
    job: BulkJob,
    embedder: PartEmbedder,
    parts: Parts,
    progress: BulkProgress,
    report: Callable[[BulkProgress], None],
) -> list[int]:
    """Embeds the parts that are not there yet. Returns the numbers of all, in order."""
    dim = job.how.options.dimensions or embedder.model.dim
    numbers: list[int] = []
    num_bytes: dict[int, int] = {}  # of those under way

    def missing() -> Iterator[Part]:
        for part in split(rows_of(job.sources, job.fields)):
            numbers.append(part.number)
            header = parts.header(part.number)
            if header is not None and header.digest == part.digest:
                _count(progress, header, part.num_bytes)
                progress.resumed += header.texts + header.bad
            else:
                if not num_bytes and progress.bytes_total is not None:
                    check_space(
                        job.out,
                        rows=len(part.rows),
                        share=part.num_bytes / max(1, progress.bytes_total - progress.bytes_done),
                        dim=dim,
                    )
                num_bytes[part.number] = part.num_bytes
                yield part

    async for done in embedder.embed(missing(), job.how):
        parts.write(done)
        _count(progress, done.header, num_bytes.pop(done.number))
        progress.tokens += done.header.tokens
        report(progress)
    return numbers


def _count(progress: BulkProgress, header: PartHeader, num_bytes: int) -> None:
    progress.texts += header.texts
    progress.vectors += header.vectors
    progress.bad += header.bad
    progress.bytes_done += num_bytes
