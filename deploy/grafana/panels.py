"""Converts panels and dashboards to Grafana's JSON, and builds their common queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

DATASOURCE = {"type": "prometheus", "uid": "prometheus"}
RATE = "[$__rate_interval]"
OF_SERVERS = "and on (job, instance) lln_ready"
"""Keeps the series of our servers, whatever their job is called: Prometheus may scrape other
processes too, such as itself."""
WORK = '{method!~"GET /health.*|GET /metrics|grpc.health.v1.Health/.*|unmatched"}'
"""Excludes probes and scrapes: they are frequent and fast, and would hide real requests."""
GRID_WIDTH = 24
PANELS_ACROSS = 3
PANEL_HEIGHT = 8

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Query:
    """One line of a panel, or one for each series."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]


@dataclass(frozen=True)
class Section:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    about: str
    sections: tuple[Section, ...]


def rate_of(metric: str, by: str = "", where: str = "") -> str:
    """Returns events per second, summed over all labels except those in `by`."""
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric}{where}{RATE}))"


def quantile_of(share: float, metric: str, by: str = "", where: str = "") -> str:
    buckets = rate_of(f"{metric}_bucket", by=f"le, {by}" if by else "le", where=where)
    return f"histogram_quantile({share}, {buckets})"


def quantiles(metric: str, where: str = "") -> tuple[Query, ...]:
    return tuple(
        Query(quantile_of(share / 100, metric, where=where), f"{share} %") for share in (50, 95, 99)
    )


def dashboard_json(dashboard: Dashboard) -> Json:
    return {
        "description": dashboard.about,
        "editable": False,
        "graphTooltip": 1,
        "links": [_link_to_the_others()],
        "panels": list(_panels_json(dashboard)),
        "refresh": "5s",
        "schemaVersion": 41,
        "tags": ["lln"],
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "title": dashboard.title,
        "uid": dashboard.uid,
        "version": 1,
    }


def _link_to_the_others() -> Json:
    return {"asDropdown": True, "tags": ["lln"], "title": "LLN", "type": "dashboards"}


def _panels_json(dashboard: Dashboard) -> Iterator[Json]:
    """Yields the sections from top to bottom, each a row title and its panels side by side."""
    number, y = 0, 0
    for section in dashboard.sections:
        number += 1
        yield _row_json(section.title, number, y)
        y += 1
        across = min(PANELS_ACROSS, len(section.panels))
        width = GRID_WIDTH // across
        for index, panel in enumerate(section.panels):
            number += 1
            x, down = index % across * width, index // across
            yield _panel_json(panel, number, x, y + down * PANEL_HEIGHT, width)
        y += -(-len(section.panels) // across) * PANEL_HEIGHT


def _panel_json(panel: Panel, number: int, x: int, y: int, width: int) -> Json:
    return {
        "datasource": DATASOURCE,
        "description": panel.description,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "gridPos": {"h": PANEL_HEIGHT, "w": width, "x": x, "y": y},
        "id": number,
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [_target_json(index, query) for index, query in enumerate(panel.queries)],
        "title": panel.title,
        "type": "timeseries",
    }


def _target_json(index: int, query: Query) -> Json:
    return {
        "datasource": DATASOURCE,
        "expr": query.expr,
        "exemplar": "_bucket" in query.expr,
        "legendFormat": query.legend,
        "refId": chr(ord("A") + index),
    }


def _row_json(title: str, number: int, y: int) -> Json:
    return {
        "collapsed": False,
        "gridPos": {"h": 1, "w": GRID_WIDTH, "x": 0, "y": y},
        "id": number,
        "panels": [],
        "title": title,
        "type": "row",
    }
