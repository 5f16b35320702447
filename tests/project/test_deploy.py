"""What deploy/ promises, held against the server's own metrics, ports and settings."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from engine.types import ModelInfo
from service.metrics import Metrics
from service.settings import setting_rows

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DOCKERFILE = DEPLOY.parent / "Dockerfile"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "lln.json"
PINNED_IMAGE = re.compile(r"[\w./-]+:v?\d+\.\d+[\w.-]*")
METRIC = re.compile(r"\b(?:lln|process)_[a-z_]+")
SUFFIXES = {
    "histogram": ("_bucket", "_sum", "_count"),
    "counter": ("_total",),
    "gauge": ("",),
}
MODEL = ModelInfo(
    name="default",
    family="bert",
    attention=("lln_diag",),
    dim=384,
    num_layers=1,
    num_heads=1,
    max_tokens=512,
    position_table=512,
    pooling="mean",
    prompts={},
    revision="0" * 64,
    calibration=None,
    source="package",
    device="cpu",
    dtype="float32",
)


def load_yaml(*parts: str) -> Any:
    return yaml.safe_load(DEPLOY.joinpath(*parts).read_text())


def series_names(registry: CollectorRegistry) -> set[str]:
    """Every name a query may use, also of families that have no series yet."""
    return {
        family.name + suffix
        for family in registry.collect()
        for suffix in SUFFIXES.get(family.type, ())
    }


def targets() -> Iterator[dict[str, Any]]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        yield from panel.get("targets", ())


def queries() -> Iterator[str]:
    yield from (target["expr"] for target in targets())


def busy_metrics() -> Metrics:
    """The metrics of a server that serves a model, answered a request and sampled a text."""
    metrics = Metrics()
    metrics.start_methods("http", ["/v1/embeddings"])
    metrics.start_models([MODEL])
    for instrument in ("entropy", "spectral_gap", "temperature"):
        metrics.attention_sampled(model=MODEL.name, layer=0, instrument=instrument, value=1.0)
    return metrics


def labels_of_series(metrics: Metrics) -> dict[str, set[str]]:
    samples = (sample for family in metrics.registry.collect() for sample in family.samples)
    return {sample.name: set(sample.labels) for sample in samples}


def labels_asked_for(target: dict[str, Any]) -> set[str]:
    """What a query groups by or selects on, and what its legend shows."""
    groups = re.findall(r"by \(([^)]*)\)", target["expr"])
    selected = re.findall(r"(\w+)[!=]~?=?\"", target["expr"])
    shown = re.findall(r"{{(\w+)}}", target["legendFormat"])
    return {name.strip() for group in groups for name in group.split(",")} | {*selected, *shown}


@pytest.fixture(scope="module")
def build_dashboard() -> Iterator[ModuleType]:
    path = DEPLOY / "grafana" / "build_dashboard.py"
    spec = importlib.util.spec_from_file_location("build_dashboard", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["build_dashboard"] = module  # dataclasses look their module up here
    spec.loader.exec_module(module)
    yield module
    del sys.modules["build_dashboard"]


def test_dashboard_is_what_its_script_writes(build_dashboard: ModuleType) -> None:
    assert DASHBOARD.read_text() == build_dashboard.render()


def test_dashboard_asks_for_metrics_that_exist() -> None:
    known = series_names(Metrics().registry)
    asked = {name for query in queries() for name in METRIC.findall(query)}
    assert len(asked) > 20
    # Prometheus's own collector of process metrics works on Linux alone.
    assert {name for name in asked if name.startswith("lln_")} - known == set()
    if sys.platform == "linux":
        assert asked - known == set()


def test_dashboard_asks_for_labels_that_exist() -> None:
    known = labels_of_series(busy_metrics())
    asked = 0
    for target in targets():
        for metric in METRIC.findall(target["expr"]):
            if metric.startswith("lln_"):
                assert labels_asked_for(target) <= known[metric], target
                asked += len(labels_asked_for(target))
    assert asked > 20


def test_dashboard_shows_every_metric() -> None:
    asked = {name for query in queries() for name in METRIC.findall(query)}
    families = {f.name for f in Metrics().registry.collect() if f.name.startswith("lln_")}
    hidden = {family for family in families if not any(name.startswith(family) for name in asked)}
    assert hidden == set()


def test_dashboard_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        grid = panel["gridPos"]
        cells = {
            (grid["x"] + column, grid["y"] + line)
            for column in range(grid["w"])
            for line in range(grid["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert {column for column, _ in taken} == set(range(24))


def test_dashboard_panels_have_ids_of_their_own() -> None:
    ids = [panel["id"] for panel in json.loads(DASHBOARD.read_text())["panels"]]
    assert len(ids) == len(set(ids))


def test_dashboard_uses_the_provisioned_data_source() -> None:
    (source,) = load_yaml("grafana", "provisioning", "datasources", "prometheus.yaml")[
        "datasources"
    ]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            assert target["datasource"] == {"type": source["type"], "uid": source["uid"]}
    assert source["url"] == "http://prometheus:9090"


def test_compose_images_are_pinned() -> None:
    images = [service["image"] for service in load_yaml("compose.yaml")["services"].values()]
    assert [image for image in images if not PINNED_IMAGE.fullmatch(image)] == []


def test_dockerfile_images_are_pinned() -> None:
    images = re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE)
    assert len(images) == 2
    assert [image for image in images if not PINNED_IMAGE.fullmatch(image)] == []


@pytest.mark.parametrize("image", ["python", "python:latest", "prom/prometheus:main"])
def test_an_image_that_can_change_is_not_pinned(image: str) -> None:
    assert not PINNED_IMAGE.fullmatch(image)


def test_compose_mounts_files_that_exist() -> None:
    for service in load_yaml("compose.yaml")["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), source


def test_compose_gpu_changes_services_that_exist() -> None:
    changed = set(load_yaml("compose.gpu.yaml")["services"])
    assert changed <= set(load_yaml("compose.yaml")["services"])


def test_compose_waits_longer_than_the_server_drains() -> None:
    drain = next(row for row in setting_rows() if row.variable.endswith("DRAIN_TIMEOUT_S"))
    grace = load_yaml("compose.yaml")["services"]["lln"]["stop_grace_period"]
    assert float(grace.removesuffix("s")) > float(drain.default)


def test_prometheus_reads_the_server() -> None:
    config = load_yaml("prometheus", "prometheus.yml")
    (scrape,) = config["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": ["lln:8000"]}]
    assert scrape["metrics_path"] == "/metrics"
    assert "lln" in load_yaml("compose.yaml")["services"]


def test_settings_named_in_deployment_exist() -> None:
    known = {row.variable for row in setting_rows()}
    text = DOCKERFILE.read_text() + (DEPLOY / "compose.yaml").read_text()
    named = set(re.findall(r"\bLLN_[A-Z_]+", text))
    assert named
    assert named - known == set()


def test_dockerfile_exposes_the_default_ports() -> None:
    defaults = {row.variable: row.default for row in setting_rows()}
    (exposed,) = re.findall(r"^EXPOSE (.*)$", DOCKERFILE.read_text(), re.MULTILINE)
    assert exposed.split() == [defaults["LLN_HTTP_PORT"], defaults["LLN_GRPC_PORT"]]


def test_dockerfile_copies_what_exists() -> None:
    """And what .dockerignore, which ignores all it does not name, lets through."""
    shown = re.findall(r"^!(\S+)$", (DEPLOY.parent / ".dockerignore").read_text(), re.MULTILINE)
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    sources = [source for line in copies for source in line.split()]
    assert sources
    for source in sources:
        assert (DEPLOY.parent / source).exists(), source
        assert source in shown
