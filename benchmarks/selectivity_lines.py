"""What the stored experiment on more selective branches says, from its figures alone.

A variant is told from another if both intervals of their difference, by seeds and by documents, are
on one side of zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Literal, TypeAlias

from benchmarks.experiment_tables import Interval, Stored, spread

Verdict: TypeAlias = Literal["more", "fewer", "level"]

_FIGURE = "passages"
_UNTRAINED = ("untrained_blocks", "untrained_lln_diag")


def selectivity_lines(stored: Stored) -> Iterator[str]:
    variants = [
        name
        for name in stored.result["methods"]
        if name not in _UNTRAINED and name != stored.reference
    ]
    yield _headline(stored, variants)
    yield _against_calibrated(stored, [name for name in variants if name != "lln_diag"])
    yield _what_training_brings(stored)


def _headline(stored: Stored, variants: Sequence[str]) -> str:
    more = _those(stored, variants, stored.reference, "more")
    fewer = _those(stored, variants, stored.reference, "fewer")
    level = _those(stored, variants, stored.reference, "level")
    verdict = "gain over" if more else "gain nothing that could be told from"
    parts = [
        f"{told} {', '.join(_told(stored, name, stored.reference) for name in names)}"
        for told, names in (("More:", more), ("Fewer:", fewer), ("Not to be told apart:", level))
        if names
    ]
    which = f"{len(more)} of {len(variants)} variants" if more else f"{len(variants)} variants"
    return (
        f"**Of late chunks trained to know their document, {which} of LLN's branch {verdict} "
        "equally trained blocks alone, on corpora left out of all training.** Reciprocal rank of "
        "passages that need their document, minus blocks alone, with an interval by seeds and one "
        f"by documents. {'. '.join(parts)} (`{stored.name}`)."
    )


def _against_calibrated(stored: Stored, variants: Sequence[str]) -> str:
    more = _those(stored, variants, "lln_diag", "more")
    fewer = _those(stored, variants, "lln_diag", "fewer")
    verdict = (
        f"Better than LLN+Diag as calibrated, equally trained: {', '.join(map(_code, more))}."
        if more
        else "No more selective branch is better than LLN+Diag as calibrated, equally trained."
    )
    also = f" Worse: {', '.join(map(_code, fewer))}." if fewer else ""
    told = ", ".join(_told(stored, name, "lln_diag") for name in variants)
    return f"**{verdict}{also}** Minus `lln_diag`: {told} (`{stored.name}`)."


def _what_training_brings(stored: Stored) -> str:
    blocks, default = (stored.figures(name)[_FIGURE]["mean"] for name in _UNTRAINED)
    control = stored.figures(stored.reference)[_FIGURE]["mean"]
    trained = stored.figures("lln_diag")[_FIGURE]["mean"]
    return (
        f"**What training itself brings, in `{stored.name}`:** blocks alone "
        f"{_told(stored, stored.reference, _UNTRAINED[0])} (from {blocks:.3f} to {control:.3f}), "
        f"LLN+Diag {_told(stored, 'lln_diag', _UNTRAINED[1])} (from {default:.3f} to "
        f"{trained:.3f}); LLN untrained {_told(stored, _UNTRAINED[1], _UNTRAINED[0])}."
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
