"""POST and GET /v1/benchmarks: this machine measured on demand."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Response

from service.errors import error_fields
from service.http.answers import BenchmarkAnswer, BenchmarkList
from service.http.dependencies import Engine, Jobs
from service.http.json import JsonRoute, json_response
from service.http.schemas import BenchmarkBody
from service.jobs import BenchmarkJob, BenchmarkPlan

router = APIRouter(route_class=JsonRoute, tags=["benchmarks"])


@router.post(
    "/v1/benchmarks", response_model=BenchmarkAnswer, status_code=202, summary="Start a benchmark"
)
async def start_benchmark(body: BenchmarkBody, jobs: Jobs, engine: Engine) -> Response:
    """Answers at once with an id; runs take turns, and short requests go before them."""
    plan = BenchmarkPlan(
        suite=body.suite,
        lengths=tuple(body.lengths),
        attentions=tuple(body.attentions),
        repeats=body.repeats,
        model=engine.resolve(body.model).name,
    )
    job = jobs.start(plan)
    return json_response(job_document(job), 202, {"location": f"/v1/benchmarks/{job.id}"})


@router.get("/v1/benchmarks", response_model=BenchmarkList, summary="List the benchmarks")
async def list_benchmarks(jobs: Jobs) -> Response:
    return json_response({"object": "list", "data": [job_document(job) for job in jobs.list()]})


@router.get(
    "/v1/benchmarks/{benchmark_id}",
    response_model=BenchmarkAnswer,
    summary="One benchmark and its rows so far",
)
async def get_benchmark(benchmark_id: str, jobs: Jobs) -> Response:
    return json_response(job_document(jobs.get(benchmark_id)))


def job_document(job: BenchmarkJob) -> dict[str, Any]:
    return {
        "object": "benchmark",
        "id": job.id,
        "state": job.state,
        **asdict(job.plan),
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "rows": [asdict(row) for row in job.rows],
        "machine": dict(job.result.machine) if job.result else None,
        "error": error_fields(job.error) if job.error else None,
    }
