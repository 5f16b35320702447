"""What each dashboard shows, of one server or of several replicas.

What adds up is told of all of them together; what does not is told of each, or as their mean.
"""

from __future__ import annotations

from deploy.grafana.panels import (
    LLN,
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
    "Is it well? Requests, failures, how long they take, and what waits.",
    (
        Section(
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
                    (
                        Query(
                            rate_of("lln_requests_total", by="code", where='{code!="ok"}'),
                            "{{code}}",
                        ),
                    ),
                ),
                Panel(
                    "In progress",
                    "Requests being answered at the moment, and how many replicas are ready.",
                    "short",
                    (
                        Query("sum by (protocol) (lln_requests_in_progress)", "{{protocol}}"),
                        Query("sum(lln_ready)", "replicas ready"),
                    ),
                ),
                Panel(
                    "Time to answer",
                    "From a request's arrival to its answer, all methods together but those of "
                    "probes and scrapes.",
                    "s",
                    quantiles("lln_request_seconds", where=WORK),
                ),
                Panel(
                    "Tokens",
                    "Tokens accepted a second.",
                    "short",
                    (Query(rate_of("lln_tokens_total", by="model"), "{{model}}"),),
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
            ),
        ),
        Section(
            "Machine",
            (
                Panel(
                    "Time the device is busy",
                    "Share of time spent on work; near 100 % there is more work than device.",
                    "percentunit",
                    (Query("lln:device_busy:ratio_rate5m", "{{instance}}"),),
                ),
                Panel(
                    "Memory",
                    "What the process holds on its device, and in all.",
                    "bytes",
                    (
                        Query("lln_device_memory_bytes", "{{instance}}: device, {{kind}}"),
                        Query(f"process_resident_memory_bytes{LLN}", "{{instance}}: resident"),
                    ),
                ),
                Panel(
                    "Processor time and descriptors",
                    "Cores the process keeps busy; files and sockets it holds open.",
                    "short",
                    (
                        Query(f"rate(process_cpu_seconds_total{LLN}{RATE})", "{{instance}}: cores"),
                        Query(f"process_open_fds{LLN}", "{{instance}}: descriptors"),
                    ),
                ),
                Panel(
                    "Models",
                    "Replicas that serve a model.",
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
                    "Units of work a second that the device failed on.",
                    "ops",
                    (Query(rate_of("lln_failed_units_total", by="kind"), "{{kind}}"),),
                ),
                Panel(
                    "Truncated",
                    "Texts cut a second because the caller asked for it.",
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
    "Do short texts stay fast whatever else is asked?",
    (
        Section(
            "By length of the text",
            tuple(
                Panel(
                    f"{share} % within",
                    "Time in the queue and on the device, by the least bound a text's tokens fit.",
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
                    "Texts a second, by length class.",
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
                    "For the texts of one call, off the event loop.",
                    "s",
                    quantiles("lln_tokenise_seconds"),
                ),
                Panel(
                    "Time in the queue",
                    "How long a text waited for the device.",
                    "s",
                    quantiles("lln_queue_seconds"),
                ),
                Panel(
                    "Time of one unit",
                    "What the device spends on one unit of work.",
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
    "Is the device given enough at a time? Batches are packed: no token of them is padding.",
    (
        Section(
            "Batches",
            (
                Panel(
                    "Fill",
                    "Tokens of batches over what they could take. Low is normal at low load.",
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
                    "Of one packed batch.",
                    "short",
                    quantiles("lln_batch_tokens"),
                ),
                Panel(
                    "Texts of a batch",
                    "Of one packed batch.",
                    "short",
                    quantiles("lln_batch_sequences"),
                ),
                Panel(
                    "Units of work",
                    "Units the device finished a second.",
                    "ops",
                    (Query(rate_of("lln_units_total", by="kind"), "{{kind}}"),),
                ),
                Panel(
                    "Speed of the device",
                    "Tokens of batches over the seconds spent on them.",
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
                    "Memory ran out",
                    "Times work was retried smaller.",
                    "ops",
                    (Query(rate_of("lln_oom_recoveries_total"), "retried smaller"),),
                ),
            ),
        ),
        Section(
            "Queue",
            (
                Panel(
                    "Waiting",
                    "Texts waiting for the device.",
                    "short",
                    (Query("lln_queue_depth", "{{instance}}"),),
                ),
                Panel(
                    "Waiting, in tokens",
                    "The limit of the queue counts tokens.",
                    "short",
                    (
                        Query("lln_queue_tokens", "{{instance}}"),
                        Query("lln_queue_tokens_limit", "{{instance}}: limit"),
                    ),
                ),
                Panel(
                    "Fullness",
                    "At 100 % work is refused at the door.",
                    "percentunit",
                    (Query("lln:queue_fullness:ratio", "{{instance}}"),),
                ),
            ),
        ),
    ),
)

_LONG = '{length!~"128|512|2048"}'

DOCUMENTS = Dashboard(
    "lln-documents",
    "LLN: long documents",
    "What long documents cost, and whether short texts get past them.",
    (
        Section(
            "Long documents",
            (
                Panel(
                    "Served",
                    "Texts of more than 2,048 tokens a second.",
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
                    "95 % of the long texts are served within this time.",
                    "s",
                    (
                        Query(
                            quantile_of(0.95, "lln_text_seconds", by="length", where=_LONG),
                            "up to {{length}} tokens",
                        ),
                    ),
                ),
                Panel(
                    "Set aside",
                    "Times a second that long work was set aside for short work.",
                    "ops",
                    (Query(rate_of("lln_preemptions_total"), "set aside"),),
                ),
            ),
        ),
        Section(
            "Beside them",
            (
                Panel(
                    "Short texts",
                    "Time of texts of up to 128 tokens, which should not notice.",
                    "s",
                    quantiles("lln_text_seconds", where='{length="128"}'),
                ),
                Panel(
                    "Device time, by kind of work",
                    "Share of the time spent on each kind of unit, mean of the replicas.",
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
    "Does the attention of live traffic stay what it was? By layer, mean of its heads.",
    (
        Section(
            "Drift",
            (
                _drift("entropy", "Entropy", "How widely a layer's heads look, in nats."),
                _drift(
                    "spectral_gap",
                    "Spectral gap",
                    "1 less the size of the second eigenvalue: how fast a head forgets.",
                ),
                _drift("temperature", "Temperature", "How sharp a layer's heads are."),
            ),
        ),
    ),
)

BENCHMARKS = Dashboard(
    "lln-benchmarks",
    "LLN: benchmarks",
    "Benchmarks run on this machine, and what they last measured.",
    (
        Section(
            "Benchmarks",
            (
                Panel(
                    "Tokens a second",
                    "Last measured, by suite, attention and length class.",
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
