"""Dashboards ask for metrics and labels that a server has, and show all of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from deploy.grafana.build import on_disk, rendered
from service.metrics import Metrics
from tests.project.monitoring import (
    DASHBOARDS,
    METRIC,
    TARGET_LABELS,
    busy_metrics,
    labels_asked_for,
    labels_of_series,
    load_yaml,
    queries,
    series_names,
    targets,
)


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
