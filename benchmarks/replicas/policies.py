"""What replicas are routed by, and the short texts that wait behind long ones."""

from __future__ import annotations

from collections.abc import Mapping

BY_TOKENS, ROUND_ROBIN, BY_REQUESTS = POLICIES = ("by tokens", "round robin", "by requests")
SHORT_LENGTHS: Mapping[int, float] = {16: 48.0, 32: 48.0, 64: 24.0}
"""Tokens, and how often texts of so many come."""

VARIABLE = "BENCHMARK_ROUTING"
"""Names the file that tells `benchmarks.replicas.routing` the policy."""
