"""Titles that weigh the same in every passage: tried, not served (docs/evaluation/trials.md)."""

from __future__ import annotations

import numpy as np

from engine.training.encode import Vectors

LEAST_REST = 0.7
"""What a passage says besides its title counts in full from this share of its vector on. With less
of it, as in a passage that is the title, it is raised no further: it would be noise."""


def with_title(vectors: Vectors, title: Vectors, weight: float) -> Vectors:
    """Give the title of the document [dim] the same weight in each vector, beside all else that the
    vector says.

    What a passage says of the title itself is taken out. Else the passages that name it would come
    before those that a query by title and subject is after. A vector is no longer than it was.
    """
    if weight == 0:
        return vectors
    direction = title / (float(np.linalg.norm(title)) or 1.0)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    along = np.einsum("nd,d->n", vectors, direction)[:, None]
    rest = vectors - along * direction
    shortest = LEAST_REST * lengths
    counted = np.maximum(np.linalg.norm(rest, axis=1, keepdims=True), shortest)
    rest = rest / np.where(counted == 0, 1, counted)
    turned: Vectors = (
        lengths / np.sqrt(1 + weight**2, dtype=np.float32) * (rest + weight * direction)
    )
    return turned
