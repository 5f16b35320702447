"""Long documents, and the short texts beside them."""

from __future__ import annotations

from deploy.grafana.panels import (
    RATE,
    Dashboard,
    Panel,
    Query,
    Section,
    quantile_of,
    quantiles,
    rate_of,
)

_LONG = '{length!~"128|512|2048"}'

DOCUMENTS = Dashboard(
    "lln-documents",
    "LLN: long documents",
    "What long documents cost, and whether short texts stay fast beside them.",
    (
        Section(
            "Long documents",
            (
                Panel(
                    "Served",
                    "Texts per second with more than 2,048 tokens.",
                    "ops",
                    (
                        Query(
                            rate_of("lln_text_seconds_count", by="length", where=_LONG),
                            "up to {{length}} tokens",
                        ),
                    ),
                ),
                Panel(
                    "Time",
                    "95 % of long texts are served within this time.",
                    "s",
                    (
                        Query(
                            quantile_of(0.95, "lln_text_seconds", by="length", where=_LONG),
                            "up to {{length}} tokens",
                        ),
                    ),
                ),
                Panel(
                    "Preemptions",
                    "Times per second that long work was preempted by short work.",
                    "ops",
                    (Query(rate_of("lln_preemptions_total"), "preemptions"),),
                ),
            ),
        ),
        Section(
            "Other work",
            (
                Panel(
                    "Short texts",
                    "Time of texts of up to 128 tokens, which should stay low.",
                    "s",
                    quantiles("lln_text_seconds", where='{length="128"}'),
                ),
                Panel(
                    "Device time, by kind of work",
                    "Share of device time of each kind of unit, mean of the replicas.",
                    "percentunit",
                    (Query(f"avg by (kind) (rate(lln_compute_seconds_sum{RATE}))", "{{kind}}"),),
                ),
            ),
        ),
    ),
)
