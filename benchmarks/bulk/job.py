"""One bulk job in a process of its own, as `python -m benchmarks.bulk` runs it.

It prints what it took.

python -m benchmarks.bulk.job CORPUS OUT [--ray N] [--part-tokens N] [--sent FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks.processes import processes_below
from engine.config import EngineConfig
from engine.platform.process import prepare_process
from service.bulk import parts
from service.bulk.cluster import ClusterOptions
from service.bulk.fields import Fields
from service.bulk.job import BulkJob, PartEmbedder, run_job
from service.bulk.rows import RowOptions
from service.bulk.sources import find_sources

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MODEL = "default"


def main() -> None:
    prepare_process()
    options = _parser().parse_args()
    if options.part_tokens:
        parts.PART_TOKENS = options.part_tokens
    if options.sent:
        logging.basicConfig(
            filename=options.sent, level=logging.WARNING, format="%(created).3f %(message)s"
        )
        logging.getLogger("service.bulk").setLevel(logging.INFO)
    print(json.dumps(asyncio.run(_run(options))))


async def _run(options: argparse.Namespace) -> dict[str, Any]:
    began = perf_counter()
    async with _embedder(options.ray) as embedder:
        started, cpu = perf_counter(), _cpu_s()
        done = await run_job(_job(options.corpus, options.out), embedder)
        ended, cpu_ended = perf_counter(), _cpu_s()
    return {
        "start_s": started - began,
        "run_s": ended - started,
        "stop_s": perf_counter() - ended,
        "cpu_s": sum(cpu_ended.values()) - sum(cpu.values()),
        "cpu_s_of": {name: cpu_ended[name] - cpu[name] for name in cpu_ended},
        "tokens": done.tokens,
        "texts": done.texts,
        "resumed": done.resumed,
    }


def _cpu_s() -> dict[str, float]:
    """Processor time so far: of this process, of workers, and of Ray's own processes."""
    found = {"command": 0.0, "workers": 0.0, "ray": 0.0}
    for process in processes_below(os.getpid()):
        is_worker = process.name.startswith("ray::Worker")
        whose = "command" if process.pid == os.getpid() else "workers" if is_worker else "ray"
        found[whose] += process.cpu_s
    return found


@asynccontextmanager
async def _embedder(workers: int | None) -> AsyncIterator[PartEmbedder]:
    config = EngineConfig(num_threads=1)
    if workers:
        from service.bulk.ray_workers import ray_workers

        async with ray_workers(MODEL, config, ClusterOptions(workers=workers)) as fleet:
            yield fleet
        return
    from engine.async_engine import AsyncEngine
    from service.bulk.embed import OneEngine

    async with AsyncEngine.load([MODEL], config=config) as engine:
        yield OneEngine(engine, MODEL)


def _job(corpus: Path, out: Path) -> BulkJob:
    return BulkJob(
        sources=find_sources([str(corpus)]),
        fields=Fields(),
        how=RowOptions(model=MODEL),
        out=out,
        bad=out.with_suffix(".bad"),
        replace=True,  # what is left of the job before; work of the same job goes on
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--ray", type=int, metavar="N", help="workers of one core")
    parser.add_argument("--part-tokens", type=int, metavar="N")
    parser.add_argument("--sent", type=Path, metavar="FILE", help="a line for each part sent")
    return parser


if __name__ == "__main__":
    main()
