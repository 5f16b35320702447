"""What keeps a rank that has connected from joining."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from engine.errors import CheckpointError, InvalidInput, LLNError
from engine.model.embedding_model import EmbeddingModel
from engine.ranks.channel import PROTOCOL, Hello
from engine.types import ModelInfo


def problem_of_rank(hello: Hello, num_ranks: int, taken: Collection[int]) -> LLNError | None:
    """Whether the rank is one of those that are awaited, and not there yet."""
    if (hello.num_ranks, hello.protocol) != (num_ranks, PROTOCOL):
        return InvalidInput(
            f"rank {hello.rank} was started for {hello.num_ranks} ranks, the first rank for "
            f"{num_ranks} (WORLD_SIZE), or with another version of LLN",
            code="wrong_num_ranks",
            param="WORLD_SIZE",
            limit=num_ranks,
            actual=hello.num_ranks,
        )
    if hello.rank in taken or not 0 < hello.rank < num_ranks:
        return InvalidInput(
            f"rank {hello.rank} has already joined, or is not one of 1 to {num_ranks - 1}",
            code="invalid_rank",
            param="RANK",
            limit=num_ranks - 1,
            actual=hello.rank,
        )
    return None


def problem_of_models(
    rank: int, infos: Iterable[ModelInfo], own_models: Mapping[str, EmbeddingModel]
) -> LLNError | None:
    """What tells the rank's models from the first rank's."""
    for info in infos:
        own = own_models[info.name].info
        for what in ("revision", "calibration", "attention", "dtype"):
            theirs, ours = getattr(info, what), getattr(own, what)
            if theirs != ours:
                return CheckpointError(
                    f"rank {rank} has another {info.name}: its {what} is {theirs}, the first "
                    f"rank's {ours}",
                    code="rank_differs",
                    param="models",
                    limit=str(ours),
                    actual=str(theirs),
                )
    return None
