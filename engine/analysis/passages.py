"""Passages of a document, each read by itself: how alike they are on both sides of a place, without
what attention carried over it.

States of a whole document know their surroundings, so they change slowly where the subject changes
at once, and change where positions restart and the subject does not. A passage read alone knows
nothing but itself: it says where the words change, and not how it follows from the one before.

The cost is that of reading the text once more, in short texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from engine.analysis.open_document import OpenDocument
from engine.execution.inputs import PreparedText, batches
from engine.execution.model_runner import run_batch
from engine.steps import Steps
from engine.types import Ids

Floats = NDArray[np.float64]

MAX_PASSAGE = 512
"""Tokens. Of a longer passage its beginning is read."""

_TOKENS_A_BATCH = 512
"""Few enough that other work soon has a turn, and as fast as more."""

_ROUNDING = 1e-9
_HEAVIEST = 200
"""Tokens from which on a passage does not weigh more."""


def passage_vectors(document: OpenDocument, edges: Sequence[int]) -> Steps[Floats]:
    """The unit vectors of the passages between the edges: [passages, W]."""
    texts = [_passage(document, start, end) for start, end in pairwise(edges)]
    found = []
    for some in batches(texts, max_tokens=_TOKENS_A_BATCH, max_texts=len(texts)):
        read = run_batch(document.model, some)
        # A model that does not pool gives the states of a passage.
        found += [states.astype(np.float64).mean(0) for states in read]
        yield
    vectors = np.stack(found)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True).clip(min=1e-12)
    return vectors


def _passage(document: OpenDocument, start: int, end: int) -> PreparedText:
    tokenizer = document.model.tokenizer
    longest = min(MAX_PASSAGE, document.model.info.max_tokens) - tokenizer.num_special
    ids: Ids = document.ids[start : min(end, start + longest)]
    return PreparedText.whole(tokenizer.between_special(ids))


def cohesion_of_passages(vectors: Floats, edges: Sequence[int], reach: float) -> Floats:
    """The cosine of the mean passages on both sides of each inner edge: of as many as have `reach`
    tokens, if passages weigh by the root of their length. [edges - 2]"""
    tokens = np.diff(np.asarray(edges, dtype=np.float64))
    weights = np.sqrt(tokens.clip(1, _HEAVIEST))
    up_to = np.concatenate([[0.0], weights.cumsum()])
    sums = np.vstack([np.zeros(vectors.shape[1]), (vectors * weights[:, None]).cumsum(0)])
    wanted = reach * weights.sum() / tokens.sum()
    places = np.arange(1, len(tokens))
    first = np.searchsorted(up_to, up_to[places] - wanted + _ROUNDING, side="right") - 1
    last = np.searchsorted(up_to, up_to[places] + wanted - _ROUNDING, side="left")
    before = sums[places] - sums[first.clip(min=0)]
    after = sums[last.clip(max=len(tokens))] - sums[places]
    lengths = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    cosines: Floats = (before * after).sum(1) / lengths.clip(min=1e-12)
    return cosines
