"""`lln bench`: the same suites without a server around them."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import aclosing
from pathlib import Path
from urllib.parse import urlsplit

from engine.engine import AsyncEngine
from engine.errors import InvalidInput
from service.benchmarks.documents import job_document, rows_as_csv
from service.benchmarks.job import BenchmarkJob
from service.benchmarks.machine import machine_of
from service.benchmarks.plan import checked_plan
from service.benchmarks.plot import plot_png
from service.benchmarks.suite import Bench, Row, Suite
from service.benchmarks.suites import SUITES
from service.errors import NotAvailable
from service.load.client import Target


async def bench(engine: AsyncEngine, chosen: argparse.Namespace) -> None:
    """Runs one suite and prints its rows as they come, or all of it as JSON at the end."""
    plan = checked_plan(
        engine.resolve(chosen.model),
        suite=chosen.suite,
        lengths=chosen.lengths,
        attentions=chosen.attentions,
        dtypes=chosen.dtypes,
        repeats=chosen.repeats,
        seconds=chosen.seconds,
        training=chosen.training or None,
    )
    suite = SUITES[plan.suite]
    server = _target(chosen.server) if chosen.server else None
    job = BenchmarkJob(
        plan=plan,
        num_rows=suite.num_rows(plan),
        machine=machine_of(engine.resolve(plan.model)),
    )
    job.start()
    async with aclosing(suite.rows(Bench(engine=engine, server=server), plan)) as rows:
        async for row in rows:
            job.add(row)
            if not chosen.json:
                _print_row(suite, row, is_first=len(job.rows) == 1)
    job.finish("done")
    if chosen.json:
        print(json.dumps(job_document(job)))
    if chosen.out is not None:
        _write(job, chosen.out)


def _target(url: str) -> Target:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # brackets or a port that are none
        raise _bad_server(url) from None
    if parts.scheme not in ("http", "https") or not host:
        raise _bad_server(url)
    tls = parts.scheme == "https"
    return Target(host=host, port=port or (443 if tls else 80), tls=tls)


def _bad_server(url: str) -> InvalidInput:
    return InvalidInput(
        f"--server must be like http://127.0.0.1:8000, got {url!r}", param="server", actual=url
    )


def _print_row(suite: Suite, row: Row, *, is_first: bool) -> None:
    columns = (*suite.labels, suite.x.name, *(measure.name for measure in suite.measures))
    if is_first:
        print("".join(f"{name:>16}" for name in columns))
    print("".join(f"{_shown(row.get(name, '')):>16}" for name in columns), flush=True)


def _shown(value: str | int | float) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _write(job: BenchmarkJob, folder: Path) -> None:
    """The run as JSON, CSV and, where it can be drawn, a picture."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / job.plan.suite
    document = json.dumps(job_document(job), indent=1) + "\n"
    path.with_suffix(".json").write_text(document, encoding="utf-8")
    path.with_suffix(".csv").write_text(rows_as_csv(job), encoding="utf-8")
    try:
        path.with_suffix(".png").write_bytes(plot_png(job))
    except NotAvailable as error:
        print(f"no picture: {error}", file=sys.stderr)
