"""Titles that callers give with their documents."""

from __future__ import annotations

from engine.errors import InvalidInput, TextTooLong
from engine.model.embedding_model import EmbeddingModel
from engine.text.chunking import contexts, shares_of
from engine.text.titles import is_visible
from engine.text.unicode import check_unicode
from engine.types import Chunking, Ids

MAX_TITLE_TOKENS = 512
"""Longest title, prompt and special tokens included."""


def check_title(title: str, plan: Chunking | None, *, has_record: bool = False) -> None:
    """Reject a title that is empty, or that no vector would use."""
    if not is_visible(title):
        raise InvalidInput(
            "title is empty; leave it out if the document has none",
            code="empty_title",
            param="title",
        )
    check_unicode(title, "title", param="title")
    if plan is None:
        raise InvalidInput(
            "title is used for the vectors of chunks, and chunking asks for none",
            code="unused_title",
            param="title",
        )
    if shares_of(plan).opening == 0:
        using = contexts(of_records=has_record, titled=True)
        why = "opening is 0" if plan.opening == 0 else f"context is {plan.context}"
        raise InvalidInput(
            f"title is not used when {why}; contexts that use it: {using}",
            code="unused_title",
            param="title",
            limit=using,
            actual=plan.context,
        )


def title_ids(title: str, model: EmbeddingModel) -> Ids:
    """The token ids of a title, after the prompt if there is one."""
    (encoded,) = model.tokenizer.encode_batch([title])
    limit = min(MAX_TITLE_TOKENS, model.info.max_tokens)
    if encoded.num_tokens > limit:
        raise TextTooLong(
            f"title has {encoded.num_tokens} tokens, the limit is {limit}",
            code="title_too_long",
            param="title",
            limit=limit,
            actual=encoded.num_tokens,
        )
    return encoded.ids
