"""LLN with other alpha and beta than 2: matched to softmax's moments in training, or fixed.

Matching is the LLN paper's equation 10, over all queries and keys that a layer reads at once, as in
its authors' code. Both scales are constants of a step: no gradient flows through them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from engine.model.baselines import LLN, Baseline, LLNDiag
from kernels.attention import PackedSequences, paper_moment_matching


@dataclass(frozen=True)
class MatchedLLN:
    """LLN, or LLN+Diag where there is a block size."""

    name: str
    block_size: int | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, packed: PackedSequences) -> Tensor:
        return self.at(q, k)(q, k, v, packed)

    def matrix(self, q: Tensor, k: Tensor) -> Tensor:
        return self.at(q, k).matrix(q, k)

    def at(self, q: Tensor, k: Tensor) -> LLN | LLNDiag:
        """With the alpha and beta of these queries and keys."""
        alpha, beta = (float(scale) for scale in paper_moment_matching(q.detach(), k.detach()))
        if self.block_size is None:
            return LLN(alpha=alpha, beta=beta)
        return LLNDiag(alpha=alpha, beta=beta, block_size=self.block_size)


MATCHED: Mapping[str, Callable[[int], Baseline]] = MappingProxyType(
    {
        "lln_matched": lambda size: MatchedLLN("lln_matched"),
        "lln_diag_matched": lambda size: MatchedLLN("lln_diag_matched", block_size=size),
    }
)
FIXED: Mapping[str, Callable[[int], Baseline]] = MappingProxyType(
    {
        "lln_1": lambda size: LLN(alpha=1.0, beta=1.0, name="lln_1"),
        "lln_2": lambda size: LLN(alpha=2.0, beta=2.0, name="lln_2"),
        "lln_3": lambda size: LLN(alpha=3.0, beta=3.0, name="lln_3"),
        "lln_4": lambda size: LLN(alpha=4.0, beta=4.0, name="lln_4"),
    }
)
"""LLN at alpha = beta = the number in the name."""


def scales_of(attention: Baseline, q: Tensor, k: Tensor) -> dict[str, float]:
    """Alpha and beta, of an attention that finds them in its queries and keys [T, H, D]."""
    if not isinstance(attention, MatchedLLN):
        return {}
    found = attention.at(q, k)
    return {"alpha": found.alpha, "beta": found.beta}
