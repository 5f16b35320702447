"""What dashboards, rules and alerts ask of a server's metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry

from service.benchmarks.suites import SUITES
from service.metrics import Metrics
from tests.model_info import MODEL
from tests.prometheus import RULES

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
METRIC = re.compile(r"\b(?:lln|process)_[a-z_]+")
RECORDED = re.compile(r"\blln:[a-z0-9_:]+")
SUFFIXES = {
    "histogram": ("_bucket", "_sum", "_count"),
    "counter": ("_total",),
    "gauge": ("",),
}
TARGET_LABELS = {"job", "instance"}
"""What Prometheus adds to every series."""


def load_yaml(*parts: str) -> Any:
    return yaml.safe_load(DEPLOY.joinpath(*parts).read_text())


def series_names(registry: CollectorRegistry) -> set[str]:
    """Every name a query may use, also of families that have no series yet."""
    return {
        family.name + suffix
        for family in registry.collect()
        for suffix in SUFFIXES.get(family.type, ())
    }


def panels() -> Iterator[dict[str, Any]]:
    for path in DASHBOARDS:
        yield from json.loads(path.read_text())["panels"]


def targets() -> Iterator[dict[str, Any]]:
    for panel in panels():
        yield from panel.get("targets", ())


def rules() -> Iterator[dict[str, Any]]:
    for path in sorted(RULES.glob("*.yml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def queries() -> Iterator[str]:
    """Everything that is asked of the metrics: by panels, and by the rules they build upon."""
    yield from (target["expr"] for target in targets())
    yield from (rule["expr"] for rule in rules())


def busy_metrics() -> Metrics:
    """The metrics of a server that serves a model, answered a request and sampled a text."""
    metrics = Metrics()
    metrics.start_methods("http", ["/v1/embeddings"])
    metrics.start_models([MODEL])
    metrics.benchmarks.start_suites(SUITES)
    metrics.benchmarks.measured(suite="encoder", attention="lln", tokens=16, tokens_per_s=1.0)
    for instrument in ("entropy", "spectral_gap", "temperature"):
        metrics.attention_sampled(model=MODEL.name, layer=0, instrument=instrument, value=1.0)
    return metrics


def labels_of_series(metrics: Metrics) -> dict[str, set[str]]:
    samples = (sample for family in metrics.registry.collect() for sample in family.samples)
    return {sample.name: set(sample.labels) for sample in samples}


def methods_of(metrics: Metrics) -> set[str]:
    (family,) = [one for one in metrics.registry.collect() if one.name == "lln_requests"]
    return {sample.labels["method"] for sample in family.samples}


def labels_asked_for(target: dict[str, Any], metric: str) -> set[str]:
    """What a query groups by, what it selects of a metric by, and what its legend shows."""
    groups = re.findall(r"by \(([^)]*)\)", target["expr"])
    selections = re.findall(rf"{metric}{{([^}}]*)}}", target["expr"])
    selected = [name for one in selections for name in re.findall(r"(\w+)[!=]~?=?\"", one)]
    shown = re.findall(r"{{(\w+)}}", target["legendFormat"])
    return {name.strip() for group in groups for name in group.split(",")} | {*selected, *shown}
