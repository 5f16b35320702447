"""Writes dashboards/lln.json: what Grafana shows of a server's metrics.

python deploy/grafana/build_dashboard.py          writes the file
python deploy/grafana/build_dashboard.py --check  fails where the file is not what it writes
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

OUTPUT = Path(__file__).resolve().parent / "dashboards" / "lln.json"
DATASOURCE = {"type": "prometheus", "uid": "prometheus"}
RATE = "[$__rate_interval]"
GRID_WIDTH = 24
PANELS_ACROSS = 3
PANEL_HEIGHT = 8

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Query:
    """One line, or family of lines, of a panel."""

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


def rate_of(metric: str, by: str = "", where: str = "") -> str:
    """Events a second, summed over all labels but those in `by`."""
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} (rate({metric}{where}{RATE}))"


def quantiles(metric: str) -> tuple[Query, ...]:
    buckets = rate_of(f"{metric}_bucket", by="le")
    return tuple(
        Query(f"histogram_quantile({share / 100}, {buckets})", f"{share} %")
        for share in (50, 95, 99)
    )


def mean_of(metric: str) -> str:
    return f"{rate_of(f'{metric}_sum')} / {rate_of(f'{metric}_count')}"


def slowest_by_method() -> Query:
    buckets = rate_of("lln_request_seconds_bucket", by="le, method")
    return Query(f"histogram_quantile(0.95, {buckets})", "{{method}}")


def drift_of(metric: str, title: str, description: str) -> Panel:
    labels = "model, layer"
    mean = f"{rate_of(f'{metric}_sum', by=labels)} / {rate_of(f'{metric}_count', by=labels)}"
    return Panel(title, description, "short", (Query(mean, "{{model}} layer {{layer}}"),))


TRAFFIC = Section(
    "Traffic",
    (
        Panel(
            "Requests",
            "Requests answered a second, whatever their outcome.",
            "reqps",
            (
                Query(
                    rate_of("lln_requests_total", by="protocol, method"),
                    "{{protocol}} {{method}}",
                ),
            ),
        ),
        Panel(
            "Failures",
            "Requests a second that ended in an error, by its code.",
            "reqps",
            (Query(rate_of("lln_requests_total", by="code", where='{code!="ok"}'), "{{code}}"),),
        ),
        Panel(
            "In progress",
            "Requests being answered at the moment.",
            "short",
            (Query("sum by (protocol) (lln_requests_in_progress)", "{{protocol}}"),),
        ),
        Panel(
            "Time to answer",
            "From a request's arrival to its answer, all methods together.",
            "s",
            quantiles("lln_request_seconds"),
        ),
        Panel(
            "Time to answer, by method",
            "95 % of the requests of a method are answered within this time.",
            "s",
            (slowest_by_method(),),
        ),
        Panel(
            "Length of texts",
            "Tokens of one accepted text.",
            "short",
            quantiles("lln_request_tokens"),
        ),
    ),
)

WORK = Section(
    "Work",
    (
        Panel(
            "Tokens",
            "Tokens accepted a second.",
            "short",
            (Query(rate_of("lln_tokens_total", by="model"), "{{model}}"),),
        ),
        Panel(
            "Time the device is busy",
            "Share of time spent on units of work; near 100 % there is more work than device.",
            "percentunit",
            (Query(rate_of("lln_compute_seconds_sum", by="kind"), "{{kind}}"),),
        ),
        Panel(
            "Units of work",
            "Units the device finished a second, and those that failed.",
            "ops",
            (
                Query(rate_of("lln_units_total", by="kind"), "{{kind}}"),
                Query(rate_of("lln_failed_units_total", by="kind"), "{{kind}} failed"),
            ),
        ),
        Panel(
            "Time of one unit",
            "What the device spends on one unit of work.",
            "s",
            quantiles("lln_compute_seconds"),
        ),
        Panel(
            "Size of a batch",
            "Mean tokens of one packed batch.",
            "short",
            (Query(mean_of("lln_batch_tokens"), "tokens"),),
        ),
        Panel(
            "Texts in a batch",
            "Mean texts of one packed batch.",
            "short",
            (Query(mean_of("lln_batch_sequences"), "texts"),),
        ),
    ),
)

QUEUE = Section(
    "Queue",
    (
        Panel(
            "Waiting",
            "Texts waiting for the device.",
            "short",
            (Query("lln_queue_depth", "texts"),),
        ),
        Panel(
            "Waiting, in tokens",
            "The limit of the queue counts tokens.",
            "short",
            (Query("lln_queue_tokens", "tokens"),),
        ),
        Panel(
            "Time in the queue",
            "How long a text waited for the device.",
            "s",
            quantiles("lln_queue_seconds"),
        ),
        Panel(
            "Refused and given up",
            "Calls refused at the door, and texts given up before they were served.",
            "ops",
            (
                Query(rate_of("lln_rejected_total", by="reason"), "refused: {{reason}}"),
                Query(rate_of("lln_cancelled_total", by="reason"), "given up: {{reason}}"),
            ),
        ),
        Panel(
            "Truncated",
            "Texts cut a second because the caller asked for it.",
            "ops",
            (Query(rate_of("lln_truncated_total", by="model"), "{{model}}"),),
        ),
        Panel(
            "Set aside and retried",
            "Long work set aside for short work; work retried after memory ran out.",
            "ops",
            (
                Query(rate_of("lln_preemptions_total"), "set aside"),
                Query(rate_of("lln_oom_recoveries_total"), "retried smaller"),
            ),
        ),
    ),
)

MACHINE = Section(
    "Machine",
    (
        Panel(
            "Device memory",
            "What the process holds on its device.",
            "bytes",
            (Query("lln_device_memory_bytes", "{{kind}}"),),
        ),
        Panel(
            "Processor time",
            "Cores the process keeps busy.",
            "short",
            (Query(f"rate(process_cpu_seconds_total{RATE})", "cores"),),
        ),
        Panel(
            "Models",
            "1 for each model that is served.",
            "short",
            (Query("lln_model_info", "{{model}} ({{attention}}, {{dtype}} on {{device}})"),),
        ),
    ),
)

DRIFT = Section(
    "Attention of sampled live texts",
    (
        drift_of("lln_attention_entropy", "Entropy", "Mean of a layer's heads, texts sampled."),
        drift_of(
            "lln_attention_spectral_gap",
            "Spectral gap",
            "1 less the size of the second eigenvalue; mean of a layer's heads.",
        ),
        drift_of(
            "lln_attention_temperature",
            "Temperature",
            "Mean of a layer's heads, texts sampled.",
        ),
    ),
)

SECTIONS = (TRAFFIC, WORK, QUEUE, MACHINE, DRIFT)


def target_json(index: int, query: Query) -> Json:
    return {
        "datasource": DATASOURCE,
        "expr": query.expr,
        "legendFormat": query.legend,
        "refId": chr(ord("A") + index),
    }


def panel_json(panel: Panel, number: int, x: int, y: int) -> Json:
    width = GRID_WIDTH // PANELS_ACROSS
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
        "targets": [target_json(index, query) for index, query in enumerate(panel.queries)],
        "title": panel.title,
        "type": "timeseries",
    }


def row_json(title: str, number: int, y: int) -> Json:
    return {
        "collapsed": False,
        "gridPos": {"h": 1, "w": GRID_WIDTH, "x": 0, "y": y},
        "id": number,
        "panels": [],
        "title": title,
        "type": "row",
    }


def panels_json() -> Iterator[Json]:
    """The sections one under the other, each a row title and its panels three abreast."""
    number, y = 0, 0
    width = GRID_WIDTH // PANELS_ACROSS
    for section in SECTIONS:
        number += 1
        yield row_json(section.title, number, y)
        y += 1
        for index, panel in enumerate(section.panels):
            number += 1
            across, down = index % PANELS_ACROSS, index // PANELS_ACROSS
            yield panel_json(panel, number, across * width, y + down * PANEL_HEIGHT)
        y += -(-len(section.panels) // PANELS_ACROSS) * PANEL_HEIGHT


def dashboard() -> Json:
    return {
        "editable": False,
        "graphTooltip": 1,
        "panels": list(panels_json()),
        "refresh": "5s",
        "schemaVersion": 41,
        "tags": ["lln"],
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "title": "LLN",
        "uid": "lln",
        "version": 1,
    }


def render() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


def main() -> None:
    if "--check" not in sys.argv[1:]:
        OUTPUT.write_text(render(), encoding="utf-8")
    elif not OUTPUT.exists() or OUTPUT.read_text(encoding="utf-8") != render():
        sys.exit(f"{OUTPUT} is out of date: run 'python deploy/grafana/build_dashboard.py'")


if __name__ == "__main__":
    main()
