"""Which of a model's prompts a vendor's `input_type` or `task` stands for."""

from __future__ import annotations

from engine.types import ModelInfo

_SYNONYMS = (
    ("query", "search_query", "retrieval.query"),
    ("document", "passage", "search_document", "retrieval.passage", "corpus"),
)
"""Names of the same purpose among vendors and in checkpoints, which have `query` and `document` or
`passage` as a rule."""


def prompt_for(purpose: str | None, model: ModelInfo) -> str | None:
    """The name of the prompt for texts of this purpose; None if the model has none of its own, and
    reads such texts as all others."""
    if purpose is None:
        return None
    names = next((names for names in _SYNONYMS if purpose in names), (purpose,))
    return next((name for name in (purpose, *names) if name in model.prompts), None)
