"""One head's matrices under softmax and under LLN, as the figures compare them."""

from __future__ import annotations

from torch import Tensor

from engine.adapt.matching import entropy_matched, paper
from engine.diagnostics.dense import lln_matrix, softmax_matrix
from engine.figures.figure import Method


def matched_matrices(q: Tensor, k: Tensor) -> dict[Method, Tensor]:
    """P of queries and keys [N, D]: softmax's, and LLN's by each way of matching it."""
    one_q, one_k = q.unsqueeze(1), k.unsqueeze(1)
    published, matched = paper(one_q, one_k), entropy_matched(one_q, one_k)
    return {
        "softmax": softmax_matrix(q, k),
        "lln": lln_matrix(q, k, 1.0, 1.0),
        "lln_paper": lln_matrix(q, k, float(published.alpha), float(published.beta)),
        "lln_entropy": lln_matrix(q, k, float(matched.alpha), float(matched.beta)),
    }
