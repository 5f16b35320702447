"""The time of texts by their length, and where it goes."""

from __future__ import annotations

from deploy.grafana.panels import Dashboard, Panel, Query, Section, quantile_of, quantiles, rate_of

LATENCY = Dashboard(
    "lln-latency",
    "LLN: latency by length",
    "Do short texts stay fast under any load?",
    (
        Section(
            "By length of the text",
            tuple(
                Panel(
                    f"{share} % within",
                    "Time in the queue and on the device, by length class.",
                    "s",
                    (
                        Query(
                            quantile_of(share / 100, "lln_text_seconds", by="length"),
                            "up to {{length}} tokens",
                        ),
                    ),
                )
                for share in (50, 95, 99)
            ),
        ),
        Section(
            "Where the time goes",
            (
                Panel(
                    "Texts served",
                    "Texts per second, by length class.",
                    "ops",
                    (
                        Query(
                            rate_of("lln_text_seconds_count", by="length"),
                            "up to {{length}} tokens",
                        ),
                    ),
                ),
                Panel(
                    "Time to answer, by method",
                    "95 % of the requests of a method are answered within this time.",
                    "s",
                    (Query(quantile_of(0.95, "lln_request_seconds", by="method"), "{{method}}"),),
                ),
                Panel(
                    "Time to tokenise",
                    "Time to tokenise the texts of one call, at most 64 at a time.",
                    "s",
                    quantiles("lln_tokenise_seconds"),
                ),
                Panel(
                    "Time in the queue",
                    "Time that a text waited for the device.",
                    "s",
                    quantiles("lln_queue_seconds"),
                ),
                Panel(
                    "Time of one unit",
                    "Device time of one unit of work.",
                    "s",
                    quantiles("lln_compute_seconds"),
                ),
                Panel(
                    "Length of texts",
                    "Tokens of one accepted text.",
                    "short",
                    quantiles("lln_request_tokens"),
                ),
            ),
        ),
    ),
)
