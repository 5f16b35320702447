"""Documents of earlier steps, which a query must tell from its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_MAX_REMEMBERED = 512
"""Documents of each source."""


class DocumentMemory:
    """Vectors of documents from earlier steps, by source, and the number of each one's text."""

    def __init__(self) -> None:
        self._of_source: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, source: int, vectors: Tensor, owners: Tensor) -> tuple[Tensor, Tensor]:
        """What is remembered of a source; nothing, of the given tensors' types, at first."""
        return self._of_source.get(source, (vectors.detach()[:0], owners[:0]))

    def add(self, source: int, vectors: Tensor, owners: Tensor) -> None:
        """Remember the latest documents first, and forget the oldest beyond the limit."""
        earlier, earlier_owners = self.of(source, vectors, owners)
        self._of_source[source] = (
            torch.cat([vectors.detach(), earlier])[:_MAX_REMEMBERED],
            torch.cat([owners, earlier_owners])[:_MAX_REMEMBERED],
        )

    def state(self) -> dict[str, Any]:
        """For the saved state of a run."""
        return {str(source): list(seen) for source, seen in self._of_source.items()}

    def load(self, state: Mapping[str, Any], device: torch.device) -> None:
        self._of_source = {
            int(source): (seen[0].to(device), seen[1].to(device)) for source, seen in state.items()
        }
