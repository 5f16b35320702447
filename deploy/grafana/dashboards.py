"""The dashboards, for one server or several replicas.

Sums cover all replicas. Other values are shown for each replica, or as their mean.
"""

from __future__ import annotations

from deploy.grafana.panels import (
    OF_SERVERS,
    RATE,
    WORK,
    Dashboard,
    Panel,
    Query,
    Section,
    quantile_of,
    quantiles,
    rate_of,
)

OVERVIEW = Dashboard(
    "lln",
    "LLN",
    "Overview: requests, failures, latency and load.",
    (
        Section(
            "Traffic",
            (
                Panel(
                    "Requests",
                    "Answered requests per second, including errors.",
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
                    "Requests per second that ended in an error, by error code.",
                    "reqps",
                    (
                        Query(
                            rate_of("lln_requests_total", by="code", where='{code!="ok"}'),
                            "{{code}}",
                        ),
                    ),
                ),
                Panel(
                    "In progress",
                    "Requests in progress, and the number of ready replicas.",
                    "short",
                    (
                        Query("sum by (protocol) (lln_requests_in_progress)", "{{protocol}}"),
                        Query("sum(lln_ready)", "replicas ready"),
                    ),
                ),
                Panel(
                    "Time to answer",
                    "From the arrival of a request to its answer, for all methods except probes "
                    "and scrapes.",
                    "s",
                    quantiles("lln_request_seconds", where=WORK),
                ),
                Panel(
                    "Tokens",
                    "Accepted tokens per second.",
                    "short",
                    (Query(rate_of("lln_tokens_total", by="model"), "{{model}}"),),
                ),
                Panel(
                    "Rejected and cancelled",
                    "Rejected calls, and texts cancelled before their result was ready.",
                    "ops",
                    (
                        Query(rate_of("lln_rejected_total", by="reason"), "rejected: {{reason}}"),
                        Query(rate_of("lln_cancelled_total", by="reason"), "cancelled: {{reason}}"),
                    ),
                ),
            ),
        ),
        Section(
            "Machine",
            (
                Panel(
                    "Time the device is busy",
                    "Share of time that the device works. Near 100 % it is the bottleneck.",
                    "percentunit",
                    (Query("lln:device_busy:ratio_rate5m", "{{instance}}"),),
                ),
                Panel(
                    "Memory",
                    "Memory of the process on its device, and resident memory.",
                    "bytes",
                    (
                        Query("lln_device_memory_bytes", "{{instance}}: device, {{kind}}"),
                        Query(
                            f"process_resident_memory_bytes {OF_SERVERS}", "{{instance}}: resident"
                        ),
                    ),
                ),
                Panel(
                    "Processor time and descriptors",
                    "Busy cores, and open files and sockets.",
                    "short",
                    (
                        Query(
                            f"rate(process_cpu_seconds_total{RATE}) {OF_SERVERS}",
                            "{{instance}}: cores",
                        ),
                        Query(f"process_open_fds {OF_SERVERS}", "{{instance}}: descriptors"),
                    ),
                ),
                Panel(
                    "Models",
                    "Replicas that serve each model.",
                    "short",
                    (
                        Query(
                            "sum by (model, attention, dtype, device) (lln_model_info)",
                            "{{model}} ({{attention}}, {{dtype}} on {{device}})",
                        ),
                    ),
                ),
                Panel(
                    "Failed units",
                    "Units of work per second that failed on the device.",
                    "ops",
                    (Query(rate_of("lln_failed_units_total", by="kind"), "{{kind}}"),),
                ),
                Panel(
                    "Truncated",
                    "Texts per second truncated at the caller's request.",
                    "ops",
                    (Query(rate_of("lln_truncated_total", by="model"), "{{model}}"),),
                ),
            ),
        ),
    ),
)

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
                    "Time to tokenise the texts of one call, in worker threads.",
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
                            "sum by (outcome) "
                            "(rate(lln_batch_api_requests_total[$__rate_interval]))",
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

DASHBOARDS = (OVERVIEW, LATENCY, BATCHES, DOCUMENTS, ATTENTION, BENCHMARKS)
