"""Late chunks of a fixed number of tokens, and the characters they cover."""

from __future__ import annotations

from typing import NamedTuple

from engine.errors import InvalidInput
from engine.text.tokenizer import Encoded
from engine.types import ChunkPlan, Offsets, Span


class ChunkSpan(NamedTuple):
    """Where one chunk lies in its document."""

    tokens: Span  # of the token sequence, special tokens included
    characters: Span  # of the original text; (0, 0) for token input


def plan_chunks(num_content_tokens: int, plan: ChunkPlan) -> list[Span]:
    """Cuts so many content tokens, counted from 0, into chunks.

    Every token is in some chunk, and the last chunk brings at least one token that the one before
    it does not have.
    """
    _validate(plan)
    step = plan.tokens - plan.overlap
    # The last chunk is the first one to reach the end.
    num_starts = 1 + max(0, -(-(num_content_tokens - plan.tokens) // step))
    starts = range(0, num_starts * step, step) if num_content_tokens else ()
    return [Span(start, min(start + plan.tokens, num_content_tokens)) for start in starts]


def chunk_spans(encoded: Encoded, plan: ChunkPlan) -> list[ChunkSpan]:
    """The chunks of one encoded document; the special tokens around it are in none of them."""
    first = encoded.num_prefix
    spans = plan_chunks(encoded.num_content, plan)
    tokens = [Span(first + span.start, first + span.end) for span in spans]
    return [ChunkSpan(span, character_span(encoded.offsets, span)) for span in tokens]


def character_span(offsets: Offsets, tokens: Span) -> Span:
    """From the first character of these tokens to their last; at least one token."""
    part = offsets[tokens.start : tokens.end]
    return Span(int(part[:, 0].min()), int(part[:, 1].max()))


def _validate(plan: ChunkPlan) -> None:
    if plan.tokens < 1:
        raise InvalidInput(
            f"a chunk must have at least 1 token, got {plan.tokens}",
            code="invalid_chunking",
            param="chunking.tokens",
            limit=1,
            actual=plan.tokens,
        )
    if not 0 <= plan.overlap < plan.tokens:
        raise InvalidInput(
            f"overlap must be 0 to {plan.tokens - 1} for chunks of {plan.tokens} tokens, "
            f"got {plan.overlap}",
            code="invalid_chunking",
            param="chunking.overlap",
            limit=plan.tokens - 1,
            actual=plan.overlap,
        )
