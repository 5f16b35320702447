"""Whether a long text is read by all ranks or by the first one alone."""

from __future__ import annotations

from collections.abc import Callable

from engine.execution.inputs import PreparedText
from engine.execution.planner import Planner
from engine.model.embedding_model import EmbeddingModel
from engine.ranks.fleet import Fleet
from engine.ranks.stretch_run import RankRun
from engine.scheduling.deadline import Deadline


def open_over_ranks(
    fleet: Fleet | None,
    planner: Planner,
    model: EmbeddingModel,
    text: PreparedText,
    on_out_of_memory: Callable[[], None] = lambda: None,
) -> RankRun | None:
    """The first rank's part of a text that all ranks read; None if this one reads it alone.

    Raises InsufficientMemory for a text that was admitted for more ranks than are left, and that
    one of them cannot read alone.
    """
    if fleet is None or text.is_tiled is not None:
        return None
    tokens = text.num_embedded
    num_ranks = planner.num_ranks(model, tokens)
    if num_ranks > 1:
        run = fleet.try_open(
            *(model, text),
            keep_projections=planner.keeps_projections(model, -(-tokens // num_ranks)),
            on_out_of_memory=on_out_of_memory,
        )
        if run is not None:
            return run
    planner.admit(planner.plan(model, tokens, tiled=True), Deadline(None))
    return None
