"""The part of `lln embed` that fills an index: `--from` and `--out`."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Container
from typing import TYPE_CHECKING, get_args

from engine.errors import InvalidInput
from engine.types import (
    Chunking,
    ChunkPlan,
    Context,
    EmbedOptions,
    HeadingPlan,
    OutputDtype,
    SentencePlan,
)
from service.cli.common import (
    Chosen,
    named,
    names,
    path_of,
    positive_gpus,
    positive_number,
    print_json,
    tell,
    with_engine,
)
from service.cli.progress import ProgressLine
from service.environment import load_settings

if TYPE_CHECKING:
    from service.bulk.cluster import ClusterOptions
    from service.bulk.fields import Fields
    from service.bulk.job import BulkJob, BulkProgress, PartEmbedder

_FORMATS = ("auto", "jsonl", "csv", "tsv", "parquet", "lines", "text")
_CHUNKS = ("headings", "sentences", "fixed")


def add_bulk_options(command: argparse.ArgumentParser) -> None:
    _add_job_options(command)
    _add_fleet_options(command)


def _add_job_options(command: argparse.ArgumentParser) -> None:
    bulk = command.add_argument_group("a corpus into a file")
    bulk.add_argument(
        "--from",
        dest="sources",
        type=named,
        nargs="+",
        action="extend",
        default=[],
        metavar="PATH",
        help="folders, globs and files; '-' is standard input. Each row of JSONL, CSV and Parquet "
        "is a text, and each other file (text, Markdown, HTML, PDF)",
    )
    bulk.add_argument(
        "--out", type=path_of, metavar="FILE", help="vectors as .npy, .jsonl or .parquet"
    )
    bulk.add_argument(
        "--format", choices=_FORMATS, default="auto", help="format of the sources (by suffix)"
    )
    bulk.add_argument("--text-field", default="text", metavar="NAME", help="default: text")
    bulk.add_argument("--id-field", default="id", metavar="NAME", help="default: id")
    bulk.add_argument("--title-field", metavar="NAME", help="a document's title, for its chunks")
    bulk.add_argument(
        "--keep", type=names, default=[], metavar="NAME,...", help="fields to copy to the output"
    )
    bulk.add_argument("--chunks", choices=_CHUNKS, help="write a row for each chunk, cut this way")
    bulk.add_argument(
        "--chunk-tokens", type=positive_number, metavar="N", help="most tokens of a chunk (256)"
    )
    bulk.add_argument(
        "--context",
        choices=get_args(Context),
        help="what a chunk takes from its document (as the model says)",
    )
    bulk.add_argument(
        "--output-dtype",
        choices=get_args(OutputDtype),
        default="float",
        help="number format of the vectors, as on the server; float16 is not for .jsonl",
    )
    bulk.add_argument(
        "--bad", type=path_of, metavar="FILE", help="file for bad rows (default: OUT.bad.jsonl)"
    )
    bulk.add_argument(
        "--replace", action="store_true", help="overwrite the output, or unfinished work on it"
    )


def _add_fleet_options(command: argparse.ArgumentParser) -> None:
    fleet = command.add_argument_group("a corpus into a file, by workers on Ray")
    fleet.add_argument("--ray", action="store_true", help="start Ray on this machine for the job")
    fleet.add_argument("--address", metavar="HOST:PORT", help="use a Ray cluster instead")
    fleet.add_argument(
        "--workers", type=positive_number, metavar="N", help="default: as many as there is room"
    )
    fleet.add_argument(
        "--worker-cpus", type=positive_number, metavar="N", help="cores of a worker (1)"
    )
    fleet.add_argument(
        "--worker-gpus", type=positive_gpus, metavar="N", help="GPUs of a worker, or a part of one"
    )


def embed_corpus(chosen: Chosen) -> None:
    from service.bulk.job import prepare, run_job

    job = _job(chosen)
    cluster = _cluster(chosen)
    prepare(job)  # refuses a bad job before the model is loaded

    async def run(embedder: PartEmbedder) -> BulkProgress:
        line = ProgressLine()
        has_begun = False

        def report(progress: BulkProgress) -> None:
            nonlocal has_begun
            if not has_begun:  # told once, by the first rows
                _tell_absent(progress.absent, job.fields)
            has_begun = True
            total, resumed = progress.bytes_total, progress.bytes_resumed
            line.show(
                f"{progress.texts} texts, {progress.vectors} vectors, {progress.bad} bad",
                done=progress.bytes_done - resumed,
                total=None if total is None else total - resumed,
                tokens=progress.tokens,
            )

        done = await run_job(job, embedder, report)
        line.end()
        return done

    done = _with_embedder(job.how.model, cluster, run)
    if done.bad:
        tell(f"{done.bad} rows could not be embedded: {job.bad}")
    if chosen.json:
        print_json(
            {
                "out": str(job.out),
                "texts": done.texts,
                "vectors": done.vectors,
                "bad": done.bad,
                "resumed": done.resumed,
                "tokens": done.tokens,
            }
        )
    else:
        resumed = f", {done.resumed} of them by an earlier run" if done.resumed else ""
        print(f"{job.out}: {done.vectors} vectors of {done.texts} texts{resumed}")


def _tell_absent(absent: Container[str], fields: Fields) -> None:
    asked_for = {"--keep": fields.keep, "--title-field": [fields.title] if fields.title else []}
    for option, given in asked_for.items():
        missing = ", ".join(sorted(name for name in given if name in absent))
        if missing:
            tell(f"no row so far has a value of {missing}, which {option} names")


def _with_embedder(
    model: str,
    cluster: ClusterOptions | None,
    work: Callable[[PartEmbedder], Awaitable[BulkProgress]],
) -> BulkProgress:
    if cluster is None:
        from service.bulk.embed import OneEngine

        return with_engine(model, lambda engine: work(OneEngine(engine, model)))
    from service.bulk.ray_workers import ray_workers

    async def run() -> BulkProgress:
        async with ray_workers(model, load_settings().engine, cluster) as workers:
            return await work(workers)

    return asyncio.run(run())


def _cluster(chosen: Chosen) -> ClusterOptions | None:
    from service.bulk.cluster import ClusterOptions

    if chosen.ray or chosen.address:
        return ClusterOptions(
            address=chosen.address,
            workers=chosen.workers,
            worker_cpus=chosen.worker_cpus or 1,
            worker_gpus=chosen.worker_gpus or 0,
        )
    for name in ("workers", "worker_cpus", "worker_gpus"):
        if getattr(chosen, name) is not None:
            raise InvalidInput(f"--{name.replace('_', '-')} needs --ray or --address")
    return None


def _job(chosen: Chosen) -> BulkJob:
    from engine.checkpoint.locate import lasting_name
    from service.bulk.fields import Fields
    from service.bulk.job import BulkJob, own_files
    from service.bulk.output import check_output
    from service.bulk.rows import RowOptions
    from service.bulk.sources import find_sources

    if not chosen.sources or chosen.out is None:
        raise InvalidInput("--from and --out belong together: where to read and where to write")
    check_output(chosen.out)
    if chosen.output_dtype == "float16" and chosen.out.suffix == ".jsonl":
        raise InvalidInput("--output-dtype float16 is for .npy and .parquet; JSON has no float16")
    fields = Fields(
        text=chosen.text_field,
        id=chosen.id_field,
        title=chosen.title_field,
        keep=tuple(chosen.keep),
    )
    how = RowOptions(
        model=lasting_name(chosen.model),
        options=EmbedOptions(dimensions=chosen.dimensions, truncate=chosen.truncate),
        chunking=_chunking(chosen),
        text_field=chosen.text_field,
    )
    bad = chosen.bad or chosen.out.with_name(f"{chosen.out.name}.bad.jsonl")
    return BulkJob(
        sources=find_sources(chosen.sources, chosen.format, own=own_files(chosen.out, bad)),
        fields=fields,
        how=how,
        out=chosen.out,
        bad=bad,
        dtype=chosen.output_dtype,
        replace=chosen.replace,
    )


def _chunking(chosen: Chosen) -> Chunking | None:
    if chosen.chunks is None:
        for name in ("chunk_tokens", "context", "title_field"):
            if getattr(chosen, name) is not None:
                raise InvalidInput(f"--{name.replace('_', '-')} needs --chunks")
        return None
    tokens = chosen.chunk_tokens or 256
    context: Context | None = chosen.context
    if chosen.chunks == "fixed":
        return ChunkPlan(tokens=tokens, context=context)
    if chosen.chunks == "sentences":
        return SentencePlan(min_tokens=tokens // 2 or 1, max_tokens=tokens, context=context)
    return HeadingPlan(max_tokens=tokens, context=context)
