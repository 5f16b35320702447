"""Packed batches, the queue before them, and the Batch API."""

from __future__ import annotations

from deploy.grafana.panels import RATE, Dashboard, Panel, Query, Section, quantiles, rate_of

BATCHES = Dashboard(
    "lln-batches",
    "LLN: batches",
    "Are batches large enough for the device? Batches are packed, without padding.",
    (
        Section(
            "Batches",
            (
                Panel(
                    "Fill",
                    "Tokens of batches divided by their limit. Low values are normal at low load.",
                    "percentunit",
                    (
                        Query(
                            f"{rate_of('lln_batch_tokens_sum')} / "
                            f"sum (rate(lln_batch_tokens_count{RATE}) * lln_batch_tokens_limit)",
                            "fill",
                        ),
                    ),
                ),
                Panel(
                    "Tokens of a batch",
                    "Tokens in one packed batch.",
                    "short",
                    quantiles("lln_batch_tokens"),
                ),
                Panel(
                    "Texts of a batch",
                    "Texts in one packed batch.",
                    "short",
                    quantiles("lln_batch_sequences"),
                ),
                Panel(
                    "Units of work",
                    "Units of work per second that the device finished.",
                    "ops",
                    (Query(rate_of("lln_units_total", by="kind"), "{{kind}}"),),
                ),
                Panel(
                    "Speed of the device",
                    "Tokens of batches divided by their device time.",
                    "short",
                    (
                        Query(
                            f"{rate_of('lln_batch_tokens_sum')} / "
                            + rate_of("lln_compute_seconds_sum", where='{kind="batch"}'),
                            "tokens/s",
                        ),
                    ),
                ),
                Panel(
                    "Out of memory",
                    "Retries in smaller pieces after the device ran out of memory.",
                    "ops",
                    (Query(rate_of("lln_oom_recoveries_total"), "retries"),),
                ),
                Panel(
                    "Ranks",
                    "Processes of each replica that read one long document together, and those "
                    "that were lost per second.",
                    "short",
                    (
                        Query("lln_ranks", "{{instance}}"),
                        Query(rate_of("lln_ranks_lost_total"), "lost"),
                    ),
                ),
            ),
        ),
        Section(
            "Queue",
            (
                Panel(
                    "Waiting",
                    "Texts in the queue.",
                    "short",
                    (Query("lln_queue_depth", "{{instance}}"),),
                ),
                Panel(
                    "Waiting, in tokens",
                    "Tokens in the queue, and the limit.",
                    "short",
                    (
                        Query("lln_queue_tokens", "{{instance}}"),
                        Query("lln_queue_tokens_limit", "{{instance}}: limit"),
                    ),
                ),
                Panel(
                    "Fullness",
                    "Queued tokens divided by the limit. At 100 % new work is rejected.",
                    "percentunit",
                    (Query("lln:queue_fullness:ratio", "{{instance}}"),),
                ),
            ),
        ),
        Section(
            "Batch API",
            (
                Panel(
                    "Answered requests",
                    "Requests of batches a second, by outcome. Failed ones are in the error files.",
                    "reqps",
                    (
                        Query(
                            rate_of("lln_batch_api_requests_total", by="outcome"),
                            "{{outcome}}",
                        ),
                    ),
                ),
                Panel(
                    "Open batches",
                    "Batches that have not finished. One is answered at a time on each server.",
                    "short",
                    (Query("lln_batch_api_open", "{{instance}}"),),
                ),
                Panel(
                    "Stored",
                    "Bytes of files and answers on the disk.",
                    "bytes",
                    (Query("lln_batch_api_stored_bytes", "{{instance}}"),),
                ),
            ),
        ),
    ),
)
