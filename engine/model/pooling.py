"""From token states to one vector a text, or one a passage."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.checkpoint.folder import Pooling


def pool(states: Tensor, spans: Sequence[tuple[int, int]], pooling: Pooling) -> Tensor:
    """One vector for each span of rows of states [T, W]: [n, W]. Spans may overlap.

    Each span is reduced alone, so its vector does not depend on what else is in the batch.
    """
    match pooling:
        case "mean":
            pooled = [states[start:end].mean(0, dtype=torch.float32) for start, end in spans]
        case "max":
            pooled = [states[start:end].amax(0).float() for start, end in spans]
        case "cls":
            pooled = [states[start].float() for start, _ in spans]
        case "none":
            raise ValueError("a model that does not pool gives token states, not one vector")
    return torch.stack(pooled)
