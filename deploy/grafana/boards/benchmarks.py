"""Benchmark runs on this machine."""

from __future__ import annotations

from deploy.grafana.panels import Dashboard, Panel, Query, Section

BENCHMARKS = Dashboard(
    "lln-benchmarks",
    "LLN: benchmarks",
    "Benchmark runs on this machine, and their latest results.",
    (
        Section(
            "Benchmarks",
            (
                Panel(
                    "Tokens a second",
                    "Latest results, by suite, attention and length class.",
                    "short",
                    (
                        Query(
                            "lln_benchmark_tokens_per_second",
                            "{{instance}}: {{suite}} {{attention}} up to {{length}}",
                        ),
                    ),
                ),
                Panel(
                    "Running",
                    "Runs under way.",
                    "short",
                    (Query("sum by (suite) (lln_benchmarks_running)", "{{suite}}"),),
                ),
                Panel(
                    "Ended",
                    "Runs since the server started, by how they ended.",
                    "short",
                    (Query("sum by (suite, state) (lln_benchmarks_total)", "{{suite}} {{state}}"),),
                ),
            ),
        ),
    ),
)
