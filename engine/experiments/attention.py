"""The attention kinds that compete, by name. None has parameters of its own, so all models of a
contest have equally many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from engine.errors import find_named
from engine.experiments.lln_scales import FIXED, MATCHED
from engine.model.baselines import LLN, SOFTMAX, Baseline, BlockDiagonal, LLNDiag
from engine.model.feature_attention import COSFORMER, ELU, Performer
from engine.model.landmark_attention import Linformer, Nystromformer

ATTENTIONS: Mapping[str, Callable[[int], Baseline]] = MappingProxyType(
    {
        "block_diagonal": lambda size: BlockDiagonal(block_size=size),
        "lln_diag": lambda size: LLNDiag(block_size=size),
        "lln": lambda size: LLN(),
        "softmax": lambda size: SOFTMAX,
        "elu": lambda size: ELU,
        "performer": lambda size: Performer(num_features=2 * size),
        "nystromformer": lambda size: Nystromformer(num_landmarks=size),
        "linformer": lambda size: Linformer(num_segments=size),
        "cosformer": lambda size: COSFORMER,
    }
)
"""Each is made for a block size. Linformer's segments and Nystromformer's landmarks are as many as
a block has tokens, and Performer's features twice as many."""


_ALL = MappingProxyType({**ATTENTIONS, **MATCHED, **FIXED})


def find_attention(name: str, *, block_size: int) -> Baseline:
    return find_named("attention", name, _ALL, param="attention")(block_size)
