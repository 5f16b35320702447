"""The Prometheus metrics of a server, a file for each thing that is measured.

Label values come from the program only (routes, served models, error codes, layer numbers), never
from requests, so the number of series is bounded.
"""

from service.metrics.batch_api import BatchApiMetrics
from service.metrics.benchmarks import BenchmarkMetrics
from service.metrics.buckets import length_class
from service.metrics.requests import OK, UNMATCHED
from service.metrics.server import Metrics

__all__ = [
    "OK",
    "UNMATCHED",
    "BatchApiMetrics",
    "BenchmarkMetrics",
    "Metrics",
    "length_class",
]
