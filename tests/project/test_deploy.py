"""What deploy/ promises, held against the server's own metrics, ports and settings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grpc_health.v1 import health_pb2
from prometheus_client import CollectorRegistry

from deploy.grafana.build import on_disk, rendered
from deploy.grafana.panels import WORK
from deploy.prometheus import build as prometheus_rule
from service.app import create_app
from service.benchmarks.suites import SUITES
from service.environment import load_settings, setting_rows
from service.errors import ERROR_TABLE
from service.metrics import UNMATCHED, Metrics
from tests.model_info import MODEL
from tests.project.conftest import STOP_MARGIN_S, SettingsOf
from tests.prometheus import PROMTOOL, RULES, needs_promtool

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DOCKERFILE = DEPLOY.parent / "Dockerfile"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
PINNED_IMAGE = re.compile(r"[\w./-]+:v?\d+\.\d+[\w.-]*")
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


def test_dashboards_are_what_their_script_writes() -> None:
    assert len(rendered()) == 6
    assert rendered() == on_disk()


def test_dashboards_ask_for_metrics_that_exist() -> None:
    known = series_names(Metrics().registry)
    asked = {name for query in queries() for name in METRIC.findall(query)}
    assert len(asked) > 20
    # Prometheus's own collector of process metrics works on Linux alone.
    assert {name for name in asked if name.startswith("lln_")} - known == set()
    if sys.platform == "linux":
        assert asked - known == set()


def test_dashboards_ask_for_labels_that_exist() -> None:
    known = labels_of_series(busy_metrics())
    asked = 0
    for target in targets():
        for metric in METRIC.findall(target["expr"]):
            if metric.startswith("lln_"):
                assert labels_asked_for(target, metric) <= known[metric] | TARGET_LABELS, target
                asked += len(labels_asked_for(target, metric))
    assert asked > 20


def test_dashboards_show_every_metric() -> None:
    asked = {name for query in queries() for name in METRIC.findall(query)}
    families = {f.name for f in Metrics().registry.collect() if f.name.startswith("lln_")}
    hidden = {family for family in families if not any(name.startswith(family) for name in asked)}
    assert hidden == set()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_fill_the_page_and_do_not_overlap(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(path.read_text())["panels"]:
        grid = panel["gridPos"]
        cells = {
            (grid["x"] + column, grid["y"] + line)
            for column in range(grid["w"])
            for line in range(grid["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert {column for column, _ in taken} == set(range(24))


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_have_ids_of_their_own(path: Path) -> None:
    ids = [panel["id"] for panel in json.loads(path.read_text())["panels"]]
    assert len(ids) == len(set(ids))


def test_dashboards_use_the_provisioned_data_source() -> None:
    (source,) = load_yaml("grafana", "provisioning", "datasources", "prometheus.yaml")[
        "datasources"
    ]
    for target in targets():
        assert target["datasource"] == {"type": source["type"], "uid": source["uid"]}
    assert source["url"] == "http://prometheus:9090"


def test_recorded_series_are_recorded() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    asked = {name for query in queries() for name in RECORDED.findall(query)}
    assert asked
    assert asked == recorded


def test_every_alert_has_a_section_in_the_runbook() -> None:
    runbook = (DEPLOY.parent / "docs" / "runbook.md").read_text()
    sections = set(re.findall(r"^## (\w+)$", runbook, re.MULTILINE))
    alerts = {rule["alert"]: rule for rule in rules() if "alert" in rule}
    assert sections == set(alerts)
    for name, rule in alerts.items():
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{name.lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_every_alert_is_tested() -> None:
    tested = (DEPLOY / "prometheus" / "tests" / "rules.yml").read_text()
    for rule in rules():
        if "alert" in rule:
            assert f'alertname="{rule["alert"]}"' in tested


def test_server_errors_are_those_of_the_error_table() -> None:
    (rule,) = [one for one in rules() if one.get("record") == "lln:server_errors:ratio_rate5m"]
    (codes,) = re.findall(r'code=~"([^"]+)"', rule["expr"])
    counted = set(codes.split("|"))
    expected_elsewhere = {
        "unavailable",
        "deadline_exceeded",
        "not_available",
        "insufficient_memory",  # refused at the door
        "storage_full",  # the same
    }
    table = {row.error.code for row in ERROR_TABLE if row.http_status >= 500}
    assert table <= counted | expected_elsewhere


def test_requests_for_work_are_all_but_probes_scrapes_and_what_is_not_there() -> None:
    (selector,) = re.findall(r'^{method!~"([^"]+)"}$', WORK)
    (rule,) = [one for one in rules() if one.get("record") == "lln:requests:rate5m"]
    assert WORK in rule["expr"]
    asked_over_http = methods_of(create_app(load_settings()).state.metrics)
    assert {method for method in asked_over_http if re.fullmatch(selector, method)} == {
        "GET /health",
        "GET /health/live",
        "GET /health/ready",
        "GET /metrics",
    }
    assert re.fullmatch(selector, UNMATCHED)
    health = health_pb2.DESCRIPTOR.services_by_name["Health"]
    assert re.fullmatch(selector, f"{health.full_name}/Check")
    assert not re.fullmatch(selector, "lln.v1.Embeddings/Embed")


def test_every_refusal_has_an_alert_or_is_the_mistake_of_a_caller() -> None:
    (alert,) = [one for one in rules() if one.get("alert") == "LLNRefusing"]
    (reasons,) = re.findall(r'reason=~"([^"]+)"', alert["expr"])
    alerted_elsewhere = {"unavailable": "LLNNotReady", "deadline_exceeded": "LLNDeadlinesMissed"}
    mistakes = {"text_too_long", "too_many_inputs", "model_not_found"}
    family = next(f for f in Metrics().registry.collect() if f.name == "lln_rejected")
    known = {sample.labels["reason"] for sample in family.samples}
    assert known == {*reasons.split("|"), *alerted_elsewhere, *mistakes}
    assert {*alerted_elsewhere.values()} <= {one.get("alert") for one in rules()}


@needs_promtool
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus/prometheus.yml"),
        ("check", "rules", "prometheus/rules/recording.yml", "prometheus/rules/alerts.yml"),
        ("test", "rules", "prometheus/tests/rules.yml"),
    ],
    ids=" ".join,
)
def test_promtool(arguments: tuple[str, ...]) -> None:
    assert PROMTOOL is not None
    checked = subprocess.run([PROMTOOL, *arguments], cwd=DEPLOY, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_promtool
def test_promtool_finds_nothing_to_say_about_the_metrics() -> None:
    assert PROMTOOL is not None
    page = busy_metrics().expose().body
    checked = subprocess.run([PROMTOOL, "check", "metrics"], input=page, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_compose_images_are_pinned() -> None:
    images = [service["image"] for service in load_yaml("compose.yaml")["services"].values()]
    assert [image for image in images if not PINNED_IMAGE.fullmatch(image)] == []


def stages() -> dict[str, str]:
    """The text of each stage of the Dockerfile, by its name; the last one has none."""
    parts = re.split(r"^FROM (.+)$", DOCKERFILE.read_text(), flags=re.MULTILINE)
    return {
        head.partition(" AS ")[2]: text for head, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def build_arguments() -> dict[str, str]:
    return dict(re.findall(r"^ARG (\w+)=(.+)$", DOCKERFILE.read_text(), re.MULTILINE))


def test_dockerfile_images_are_pinned() -> None:
    images = re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE)
    assert set(images) == {"${PYTHON_IMAGE}", "dependencies"}
    assert PINNED_IMAGE.fullmatch(build_arguments()["PYTHON_IMAGE"])


def test_an_edit_of_the_source_rebuilds_no_dependency() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", stages()["dependencies"], re.MULTILINE)
    assert copied == ["pyproject.toml constraints.txt", "tools/install.py"]
    assert "install.py dependencies" in stages()["dependencies"]
    assert "COPY --from=dependencies /opt/lln /opt/lln" in stages()[""]


def test_the_image_can_do_what_settings_ask_for() -> None:
    """A message that says "install the extra" names one that the image has, or that of pictures."""
    texts = [path.read_text() for path in (DEPLOY.parent / "service").rglob("*.py")]
    asked = {name for text in texts for name in re.findall(r"the extra [\"'\s]*(\w+)'", text)}
    assert asked == {"tracing", "figures"}
    assert "tracing" in build_arguments()["EXTRAS"].split(",")


def test_labels_tell_the_version() -> None:
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]+)"', stages()[""]))
    assert (labels["version"], labels["licenses"]) == (project["version"], project["license"])


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


def test_compose_waits_longer_than_the_server_takes_to_stop(settings_of: SettingsOf) -> None:
    server = load_yaml("compose.yaml")["services"]["lln"]
    grace_s = float(server["stop_grace_period"].removesuffix("s"))
    # One without a value is the host's, which may have none.
    given = {name: value for name, value in server["environment"].items() if value is not None}
    settings = settings_of(given)
    stop_s = settings.shutdown_notice_s + settings.engine.drain_timeout_s
    assert grace_s >= stop_s + STOP_MARGIN_S


def test_compose_needs_no_substitution() -> None:
    """podman-compose 1.0 passes `${NAME:-}` on as it is written."""
    assert "${" not in (DEPLOY / "compose.yaml").read_text()


def test_compose_leaves_process_1_to_an_init() -> None:
    """The kernel keeps signals from a process 1 that has no handler for them yet."""
    assert load_yaml("compose.yaml")["services"]["lln"]["init"] is True


def test_prometheus_reads_the_server() -> None:
    config = load_yaml("prometheus", "prometheus.yml")
    (scrape,) = config["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": ["lln:8000"]}]
    assert scrape["metrics_path"] == "/metrics"
    assert "lln" in load_yaml("compose.yaml")["services"]


def test_prometheus_sends_alerts_to_the_alertmanager_of_compose() -> None:
    (alertmanager,) = load_yaml("prometheus", "prometheus.yml")["alerting"]["alertmanagers"]
    assert alertmanager["static_configs"] == [{"targets": ["alertmanager:9093"]}]
    assert "127.0.0.1:9093:9093" in load_yaml("compose.yaml")["services"]["alertmanager"]["ports"]


def test_the_receiver_of_alerts_exists_and_so_do_the_alerts_that_silence_others() -> None:
    config = load_yaml("prometheus", "alertmanager.yml")
    assert config["route"]["receiver"] in {receiver["name"] for receiver in config["receivers"]}
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    sources = [name for one in config["inhibit_rules"] for name in one["source_matchers"]]
    assert {re.fullmatch(r'alertname="(\w+)"', one)[1] for one in sources} <= alerts  # type: ignore[index]


def test_no_rule_or_panel_depends_on_the_name_of_the_scrape_job() -> None:
    """Annotated pods are scraped by jobs of any name. A target that never answered has no other
    sign of being ours, so LLNDown and LLNAbsent look at the name too."""
    named = {query for query in queries() if "job=" in query}
    alerts = {rule["alert"]: rule["expr"] for rule in rules() if "alert" in rule}
    assert named == {alerts["LLNDown"], alerts["LLNAbsent"]}


def test_the_operator_reads_the_same_rules() -> None:
    for path, content in prometheus_rule.rendered().items():
        assert path.read_text() == content


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
