"""Rules and alerts fit the server's metrics and errors, and the runbook explains them."""

from __future__ import annotations

import re
import subprocess

import pytest
from grpc_health.v1 import health_pb2

from deploy.grafana.panels import WORK
from deploy.prometheus import build as prometheus_rule
from service.app import create_app
from service.environment import load_settings
from service.errors import ERROR_TABLE
from service.metrics import UNMATCHED, Metrics
from tests.project.monitoring import (
    DEPLOY,
    RECORDED,
    busy_metrics,
    load_yaml,
    methods_of,
    queries,
    rules,
)
from tests.prometheus import PROMTOOL, needs_promtool


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
    tested = "".join(file.read_text() for file in (DEPLOY / "prometheus" / "tests").iterdir())
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
        ("test", "rules", "prometheus/tests/rules.yml", "prometheus/tests/drift.yml"),
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
