"""What routing by tokens is worth, in simulated time with the engine's own scheduler."""

from __future__ import annotations

from statistics import fmean

import pytest

from benchmarks.replicas.policies import BY_REQUESTS, BY_TOKENS, ROUND_ROBIN
from benchmarks.replicas.simulated import MIXES, Outcome, outcome


def outcomes(mix: str, *policies: str) -> dict[str, Outcome]:
    """Means over seeds, of which one may meet few long texts."""
    found = {}
    for policy in policies:
        runs = [outcome(policy, MIXES[mix], seconds=50.0, seed=seed) for seed in range(3)]
        shorts, longs = [one.short_p99_s for one in runs], [one.long_p50_s for one in runs]
        found[policy] = Outcome(fmean(shorts), fmean(longs))
    return found


@pytest.mark.parametrize("mix", ["paragraphs of 512", "pages, and documents of 8,192"])
def test_short_texts_wait_less_than_half_as_long_at_the_99th_percentile(mix: str) -> None:
    found = outcomes(mix, BY_TOKENS, ROUND_ROBIN, BY_REQUESTS)
    assert found[ROUND_ROBIN].short_p99_s > 2 * found[BY_TOKENS].short_p99_s
    assert found[BY_REQUESTS].short_p99_s > found[BY_TOKENS].short_p99_s


def test_texts_that_are_read_tile_by_tile_pay_nothing_for_it() -> None:
    found = outcomes("documents of 8,192", BY_TOKENS, ROUND_ROBIN)
    assert found[BY_TOKENS].long_p50_s < 1.1 * found[ROUND_ROBIN].long_p50_s
    assert found[BY_TOKENS].short_p99_s < 1.25 * found[ROUND_ROBIN].short_p99_s
