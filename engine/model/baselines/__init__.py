"""Other attentions, to measure ours against: softmax and what has been put in its place.

Each takes packed rows, (q, k, v, packed) -> out, bidirectional within each sequence, and has
nothing to learn, so that it runs on any checkpoint's queries and keys. `matrix` is its formula
written out densely. Add one by writing a file and naming it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from engine.errors import InvalidInput
from engine.model.baselines.base import Baseline
from engine.model.baselines.cosformer import COSFORMER
from engine.model.baselines.elu import ELU
from engine.model.baselines.linformer import LINFORMER
from engine.model.baselines.lln import LLN_ATTENTION
from engine.model.baselines.lln_diag import LLN_DIAG
from engine.model.baselines.nystromformer import NYSTROMFORMER
from engine.model.baselines.performer import PERFORMER
from engine.model.baselines.quadratic import QUADRATIC
from engine.model.baselines.relu import RELU
from engine.model.baselines.softmax import SOFTMAX

__all__ = ["BASELINES", "Baseline", "find_baseline"]

BASELINES: Mapping[str, Baseline] = MappingProxyType(
    {
        one.name: one
        for one in (
            SOFTMAX,
            ELU,
            RELU,
            QUADRATIC,
            PERFORMER,
            NYSTROMFORMER,
            LINFORMER,
            COSFORMER,
            LLN_ATTENTION,
            LLN_DIAG,
        )
    }
)


def find_baseline(name: str) -> Baseline:
    if name not in BASELINES:
        known = ", ".join(BASELINES)
        raise InvalidInput(
            f"there is no attention {name!r}; there are {known}",
            param="attention",
            limit=known,
            actual=name,
        )
    return BASELINES[name]
