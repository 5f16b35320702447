"""Folds a record: what a document that only grows needs, under a megabyte at any length.

All segments but the last, which the next addition changes, become one. It has their merged states
and their sums for pooling, and the hash of all their text, but no chunks: their vectors are in the
caller's hands. An edit before the end leaves nothing of a folded record to go on from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from engine.living.pooling import Sums, sums_of
from engine.living.record import DocumentRecord, KeptSegment, SegmentVectors
from engine.text.segments import SegmentKey, digest_of
from engine.types import Vector
from kernels.attention import LLNState, merge_states


def fold(
    record: DocumentRecord, text: str, staleness: Sequence[float], pooling: str
) -> DocumentRecord:
    """The record of this text with its segments folded. `staleness` is that of each segment."""
    *sealed, last = record.segments
    if not sealed:
        return replace(record, folded=True)
    # The view that is furthest from now stands for all.
    stalest = max(range(len(sealed)), key=staleness.__getitem__)
    one = KeptSegment(
        key=_key_of(sealed, text),
        num_characters=sum(segment.num_characters for segment in sealed),
        num_rows=sum(segment.num_rows for segment in sealed),
        num_content=sum(segment.num_content for segment in sealed),
        chunks=(),
        vectors=_vectors_of(sealed, pooling),
        states=tuple(map(_merged, zip(*(segment.states for segment in sealed), strict=True))),
        view=sealed[stalest].view,
        num_sealed=sum(segment.num_chunks for segment in sealed),
    )
    used = sorted({one.view, last.view, len(record.views) - 1})
    number_of = {view: number for number, view in enumerate(used)}
    return replace(
        record,
        views=tuple(record.views[view] for view in used),
        segments=tuple(replace(part, view=number_of[part.view]) for part in (one, last)),
        folded=True,
    )


def _key_of(sealed: Sequence[KeptSegment], text: str) -> SegmentKey:
    """The key of all the text that decided where these segments end."""
    start = sum(segment.num_characters for segment in sealed[:-1])
    seen = max(
        start + sealed[-1].key.seen,
        sum(segment.num_characters for segment in sealed),
    )
    return SegmentKey(seen, digest_of(text[:seen]), sees_end=False)


def _merged(states: Sequence[LLNState | None]) -> LLNState | None:
    found = [state for state in states if state is not None]
    return reduce(merge_states, found) if found else None


def _vectors_of(sealed: Sequence[KeptSegment], pooling: str) -> SegmentVectors:
    none: Vector = sealed[0].vectors.late[:0]
    flat = np.stack([segment.vectors.flat for segment in sealed])
    sums: Sums = sums_of(sealed)
    match pooling:
        case "cls":
            whole = flat[0]
        case "max":
            whole = flat.max(0)
        case _:
            whole = sums.flat / sums.rows
    rising = 2 * sums.placed / sums.rows**2
    return SegmentVectors(none, none, whole.astype(np.float32), rising.astype(np.float32))
