"""How many ranks, and what each gets of the cluster."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    ranks: int
    """All of them, the first one included, which is this process."""

    cpus: int = 1
    """Cores of a rank, which are its threads too."""

    gpus: int = 0

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise InvalidInput(
                f"--ranks must be at least 2, got {self.ranks}: this process is the first of them",
                code="invalid_option",
                param="ranks",
                limit=2,
                actual=self.ranks,
            )
