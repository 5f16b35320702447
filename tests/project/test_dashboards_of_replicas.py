"""Every panel, over the series of one server and then of two that do the same.

The series are the server's own metrics, as Prometheus would have stored them.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, get_args

import httpx
import pytest
import yaml
from prometheus_client.samples import Sample

from engine.scheduling.request import TimedResult, UnitKind
from service.metrics import Metrics
from tests.model_info import MODEL
from tests.prometheus import (
    PROMTOOL,
    RULES,
    ask,
    needs_prometheus,
    needs_promtool,
    panels,
    running_prometheus,
)

pytestmark = [needs_prometheus, needs_promtool]

STEP_S = 15
NUM_STEPS = 41
LASTS_S = STEP_S * (NUM_STEPS - 1)
ALONE_AT = 1_700_000_000
TOGETHER_AT = ALONE_AT + 86_400
FIRST, SECOND = "replica-a", "replica-b"
JOB = "kubernetes-pods"
"""Scraped by a job that is named after something else."""

BUSY_S = 9.0
"""Of the 15 seconds of a step, the time that the device works."""
BATCH_TOKENS, MAX_BATCH_TOKENS = 4096, 8192
EMBEDDING_S, PROBE_S = 3.0, 0.001

DO_NOT_ADD_UP = ("s", "bytes", "percentunit")
"""Units of panels whose lines are not those of two servers together."""


def started_metrics() -> Metrics:
    metrics = Metrics()
    metrics.start_models([MODEL])
    metrics.benchmarks.start_suites(["encoder"])
    metrics.start_readiness(lambda: True)
    metrics.start_limits(queue_tokens=4_194_304, batch_tokens=MAX_BATCH_TOKENS)
    metrics.queue_changed(depth=3, tokens=900)
    metrics.benchmarks.measured(suite="encoder", attention="lln", tokens=16, tokens_per_s=1e4)
    return metrics


def work(metrics: Metrics) -> None:
    """What a server does in one step: something of everything that it counts."""
    for method, seconds in (("POST /v1/embeddings", EMBEDDING_S), ("GET /health/ready", PROBE_S)):
        for _ in range(3):
            metrics.request_finished(protocol="http", method=method, code="ok", seconds=seconds)
    metrics.request_finished(
        protocol="http", method="POST /v1/embeddings", code="queue_full", seconds=0.01
    )
    metrics.rejected(reason="queue_full")
    metrics.cancelled(reason="deadline")
    metrics.truncated(model=MODEL.name)
    metrics.preempted()
    metrics.recovered_from_oom()
    for unit in get_args(UnitKind):
        metrics.unit_finished(
            unit=unit,
            model=MODEL.name,
            sequences=32,
            tokens=BATCH_TOKENS,
            compute_s=BUSY_S / len(get_args(UnitKind)),
            failed=False,
        )
    for tokens in (100, 20_000):
        metrics.accepted(model=MODEL.name, tokens=tokens)
        metrics.tokenised(texts=1, tokens=tokens, seconds=0.01)
        metrics.waited(seconds=0.1)
        metrics.served([TimedResult(None, queue_s=0.1, compute_s=1.0, tokens=tokens)])
    for instrument in ("entropy", "spectral_gap", "temperature"):
        metrics.attention_sampled(model=MODEL.name, layer=0, instrument=instrument, value=0.5)
    metrics.benchmarks.finished(suite="encoder", state="done")


def samples(metrics: Metrics) -> list[Sample]:
    return [sample for family in metrics.registry.collect() for sample in family.samples]


def history() -> Iterator[str]:
    """What one replica tells while it is alone, and two while they are together, as OpenMetrics."""
    metrics = started_metrics()
    for step in range(NUM_STEPS):
        for sample in samples(metrics):
            for start, replica in ((ALONE_AT, FIRST), (TOGETHER_AT, FIRST), (TOGETHER_AT, SECOND)):
                labels = {**sample.labels, "job": JOB, "instance": replica}
                told = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items())
                yield f"{sample.name}{{{told}}} {sample.value} {start + step * STEP_S}"
        work(metrics)
    yield "# EOF\n"


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    assert PROMTOOL is not None
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "history.txt").write_text("\n".join(history()))
    fill = [PROMTOOL, "tsdb", "create-blocks-from", "openmetrics", "history.txt", "data"]
    subprocess.run(fill, cwd=folder, check=True, capture_output=True)
    with running_prometheus(folder, {}, "--storage.tsdb.retention.time=100y") as client:
        yield client


def recorded() -> dict[str, str]:
    files = [yaml.safe_load(path.read_text()) for path in RULES.glob("*.yml")]
    rules = [rule for file in files for group in file["groups"] for rule in group["rules"]]
    return {rule["record"]: rule["expr"] for rule in rules if "record" in rule}


def spelt_out(query: str) -> str:
    """Without names of recorded series, since rules are not evaluated for the past."""
    for name, expr in recorded().items():
        query = query.replace(name, f"({expr})")
    return query.replace("$__rate_interval", "1m")


def lines(client: httpx.Client, panel: dict[str, Any], start: int) -> list[tuple[str, float]]:
    """What a panel draws at the end of a stretch of history, each line by its legend."""
    found = []
    for target in panel["targets"]:
        for series in ask(client, spelt_out(target["expr"]), time=start + LASTS_S):
            legend = target["legendFormat"]
            for name, value in series["metric"].items():
                legend = legend.replace(f"{{{{{name}}}}}", value)
            found.append((legend, float(series["value"][1])))
    return [(legend, value) for legend, value in found if not math.isnan(value)]


@pytest.mark.parametrize("place", panels())
def test_a_panel_tells_of_two_replicas(prometheus: httpx.Client, place: str) -> None:
    panel = panels()[place]
    of_one, of_two = (lines(prometheus, panel, start) for start in (ALONE_AT, TOGETHER_AT))
    # Prometheus's own collector of process metrics works on Linux alone.
    assert of_one or sys.platform != "linux"
    assert len(dict(of_two)) == len(of_two), "lines that cannot be told apart"
    one, both = dict(of_one), dict(of_two)
    assert {legend.replace(SECOND, FIRST) for legend in both} == set(one)
    adds_up = panel["fieldConfig"]["defaults"]["unit"] not in DO_NOT_ADD_UP
    for legend, value in both.items():
        alone = one[legend.replace(SECOND, FIRST)]
        is_same = value == pytest.approx(alone)
        is_sum = value == pytest.approx(2 * alone)
        tells_of_each = FIRST in legend or SECOND in legend
        assert is_same or (is_sum and adds_up and not tells_of_each), (legend, value, alone)


def test_shares_of_two_replicas_are_those_of_each(prometheus: httpx.Client) -> None:
    fill = dict(lines(prometheus, panels()["lln-batches: Fill"], TOGETHER_AT))
    assert fill == {"fill": pytest.approx(BATCH_TOKENS / MAX_BATCH_TOKENS)}
    busy = dict(lines(prometheus, panels()["lln: Time the device is busy"], TOGETHER_AT))
    assert busy == dict.fromkeys((FIRST, SECOND), pytest.approx(BUSY_S / STEP_S))
    kinds = lines(prometheus, panels()["lln-documents: Device time, by kind of work"], TOGETHER_AT)
    assert sum(share for _, share in kinds) == pytest.approx(BUSY_S / STEP_S)


def test_probes_do_not_shorten_the_time_to_answer(prometheus: httpx.Client) -> None:
    """Here as many probes are answered as requests for work."""
    found = dict(lines(prometheus, panels()["lln: Time to answer"], ALONE_AT))
    assert found["50 %"] > EMBEDDING_S / 2
