"""What the stored experiment on more selective branches says, from its figures alone.

Two variants differ if both intervals of their difference, over seeds and over documents, lie on the
same side of zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Literal, TypeAlias

from benchmarks.experiments.tables import Interval, Stored, spread
from engine.experiments.intervals import SeedInterval

Verdict: TypeAlias = Literal["more", "fewer", "level"]

_FIGURE = "passages"
_UNTRAINED = ("untrained_lln_diag", "untrained_blocks")
_VERDICTS: Mapping[str, Verdict] = {
    "More:": "more",
    "Fewer:": "fewer",
    "No measurable difference:": "level",
}


def selectivity_lines(stored: Stored) -> Iterator[str]:
    variants = [
        name for name in stored.result["methods"] if name not in (stored.reference, *_UNTRAINED)
    ]
    yield _against_calibrated(stored, [name for name in variants if name != "lln_diag"])
    yield _against_blocks(stored, variants)
    yield _what_training_brings(stored)


def _against_calibrated(stored: Stored, variants: Sequence[str]) -> str:
    more = _those(stored, variants, "lln_diag", "more")
    fewer = _those(stored, variants, "lln_diag", "fewer")
    verdict = f"better {', '.join(map(_code, more))}" if more else "no other branch is better"
    also = f", worse {', '.join(map(_code, fewer))}" if fewer else ""
    told = ", ".join(_told(stored, name, "lln_diag") for name in variants)
    return (
        "**Late chunks trained to know their document, with LLN's branch more selective or plainer "
        f"than LLN+Diag, equally trained: {verdict}{also}.** Reciprocal rank of passages that need "
        "their document, on corpora left out of all training, minus `lln_diag`, with an interval "
        f"by seeds and one by documents: {told} (`{stored.name}`)."
    )


def _against_blocks(stored: Stored, variants: Sequence[str]) -> str:
    found = {
        told: _those(stored, variants, stored.reference, verdict)
        for told, verdict in _VERDICTS.items()
    }
    untrained = _intervals(stored, *_UNTRAINED)[1]
    also = ", but so does LLN+Diag untrained" if untrained["low"] > 0 else ""
    parts = [
        f"{told} {', '.join(_told(stored, name, stored.reference) for name in names)}"
        for told, names in found.items()
        if names
    ]
    return (
        f"**{len(found['More:'])} of these {len(variants)}, LLN+Diag among them, find more than "
        f"equally trained blocks alone{also}.** {'. '.join(parts)}. Untrained LLN+Diag minus "
        f"untrained blocks: {spread(untrained, sign='+')} by documents (`{stored.name}`)."
    )


def _what_training_brings(stored: Stored) -> str:
    untrained_lln, untrained_blocks = _UNTRAINED
    verdict = verdict_of(*_intervals(stored, stored.reference, untrained_blocks))
    told = {
        "more": "Training itself makes blocks alone better",
        "fewer": "Training itself makes blocks alone worse",
        "level": "Training this short does not measurably improve blocks alone, so it does not "
        "show how much of LLN's lead would remain after longer training",
    }
    lead = stored.minus("lln_diag", stored.reference, _FIGURE)
    before = stored.minus(untrained_lln, untrained_blocks, _FIGURE).mean
    change = SeedInterval(mean=lead.mean - before, low=lead.low - before, high=lead.high - before)
    means = {
        name: stored.figures(name)[_FIGURE]["mean"]
        for name in (untrained_blocks, stored.reference, untrained_lln, "lln_diag")
    }
    figures = ", ".join(f"{_code(name)} {mean:.3f}" for name, mean in means.items())
    return (
        f"**{told[verdict]}.** {_told(stored, stored.reference, untrained_blocks)} over "
        f"{_code(untrained_blocks)}; it changes LLN's lead by {spread(asdict(change), sign='+')} "
        f"by seeds. Found: {figures} (`{stored.name}`)."
    )


def _those(stored: Stored, names: Sequence[str], other: str, wanted: Verdict) -> list[str]:
    return [name for name in names if verdict_of(*_intervals(stored, name, other)) == wanted]


def verdict_of(by_seed: Interval, by_document: Interval) -> Verdict:
    if min(by_seed["low"], by_document["low"]) > 0:
        return "more"
    if max(by_seed["high"], by_document["high"]) < 0:
        return "fewer"
    return "level"


def _intervals(stored: Stored, name: str, other: str) -> tuple[Interval, Interval]:
    by_document = stored.minus_by_document(name, other)[_FIGURE]
    return asdict(stored.minus(name, other, _FIGURE)), by_document


def _told(stored: Stored, name: str, other: str) -> str:
    by_seed, by_document = _intervals(stored, name, other)
    told = f"{spread(by_seed, sign='+')}, {spread(by_document, sign='+').partition(' ')[2]}"
    return f"{_code(name)} {told}"


def _code(name: str) -> str:
    return f"`{name}`"
