"""The drift of attention in live traffic."""

from __future__ import annotations

from deploy.grafana.panels import Dashboard, Panel, Query, Section


def _drift(instrument: str, title: str, about: str) -> Panel:
    legend = "{{model}} layer {{layer}}"
    return Panel(title, about, "short", (Query(f"lln:attention_{instrument}:mean", legend),))


ATTENTION = Dashboard(
    "lln-attention",
    "LLN: attention",
    "Does the attention of live traffic change? By layer, mean of its heads.",
    (
        Section(
            "Drift",
            (
                _drift("entropy", "Entropy", "How widely a layer's heads attend, in nats."),
                _drift(
                    "spectral_gap",
                    "Spectral gap",
                    "1 minus the absolute second eigenvalue: how fast a head mixes.",
                ),
                _drift("temperature", "Temperature", "How sharp a layer's heads are."),
            ),
        ),
    ),
)
