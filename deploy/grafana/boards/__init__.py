"""The dashboards, a file each, for one server or several replicas.

Sums cover all replicas. Other values are shown for each replica, or as their mean.
"""

from deploy.grafana.boards.attention import ATTENTION
from deploy.grafana.boards.batches import BATCHES
from deploy.grafana.boards.benchmarks import BENCHMARKS
from deploy.grafana.boards.documents import DOCUMENTS
from deploy.grafana.boards.latency import LATENCY
from deploy.grafana.boards.overview import OVERVIEW

DASHBOARDS = (OVERVIEW, LATENCY, BATCHES, DOCUMENTS, ATTENTION, BENCHMARKS)
