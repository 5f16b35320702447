"""Requests, failures, latency and load, and the machine."""

from __future__ import annotations

from deploy.grafana.panels import (
    OF_SERVERS,
    RATE,
    WORK,
    Dashboard,
    Panel,
    Query,
    Section,
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
