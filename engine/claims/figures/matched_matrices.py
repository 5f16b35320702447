"""Softmax and LLN attention of the same queries and keys, with each way to match LLN to softmax."""

from __future__ import annotations

from torch import Tensor

from engine.claims.figures.figure import Method
from engine.claims.lln_matching import entropy_matched, paper
from engine.claims.matrices import lln_matrix, softmax_matrix


def matched_matrices(q: Tensor, k: Tensor) -> dict[Method, Tensor]:
    """Attention matrices of queries and keys [N, D]: softmax, and LLN with each matching."""
    one_q, one_k = q.unsqueeze(1), k.unsqueeze(1)
    published, matched = paper(one_q, one_k), entropy_matched(one_q, one_k)
    return {
        "softmax": softmax_matrix(q, k),
        "lln": lln_matrix(q, k, 1.0, 1.0),
        "lln_paper": lln_matrix(q, k, float(published.alpha), float(published.beta)),
        "lln_entropy": lln_matrix(q, k, float(matched.alpha), float(matched.beta)),
    }
