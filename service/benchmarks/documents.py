"""Runs as JSON and CSV, alike over HTTP and in the shell."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict
from typing import Any

from service.benchmarks.job import BenchmarkJob
from service.benchmarks.suite import Suite


def job_document(job: BenchmarkJob) -> dict[str, Any]:
    return {
        "object": "benchmark",
        "id": job.id,
        "state": job.state,
        **asdict(job.plan),
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "num_rows": job.num_rows,
        "rows": [dict(row) for row in job.rows],
        "machine": dict(job.machine),
        "error": job.error,
    }


def suite_document(suite: Suite) -> dict[str, Any]:
    return {
        "name": suite.name,
        "about": suite.about,
        "fields": ["lengths", *suite.fields],
        "lengths": suite.lengths,
        "attentions": suite.attentions,
        "known_attentions": suite.known_attentions,
        "labels": suite.labels,
        "x": asdict(suite.x),
        "measures": [asdict(measure) for measure in suite.measures],
    }


def rows_as_csv(job: BenchmarkJob) -> str:
    """The rows, and before them what a figure needs to be worth anything."""
    shared = {"id": job.id, "suite": job.plan.suite, "model": job.plan.model}
    provenance = {name: job.machine.get(name, "") for name in ("device", "commit", "lln", "torch")}
    text = io.StringIO()
    of_rows = dict.fromkeys(name for row in job.rows for name in row)
    columns = [*shared, *of_rows, *provenance]
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    for row in job.rows:
        table.writerow(shared | dict(row) | provenance)
    return text.getvalue()
