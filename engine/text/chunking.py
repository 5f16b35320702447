"""Splits an encoded document into late chunks, each a range of tokens and of characters.

- Fixed chunks are ranges of tokens (`plan_chunks`).
- Sentences and sections are found in the text, then joined or split to the requested sizes. Every
  content token is in exactly one of them.
- The caller's own spans contain every token that has a character in them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, get_args

from engine.errors import InvalidInput, shown
from engine.text.content_tokens import ContentTokens, Passage, character_span
from engine.text.encoded import Encoded
from engine.text.headings.sections import sections
from engine.text.sentences import sentences
from engine.types import (
    Chunking,
    ChunkPlan,
    Context,
    HeadingFormat,
    HeadingPlan,
    SentencePlan,
    Span,
    SpanPlan,
)

OPENING_TOKENS = 32
"""Longest opening of a document: its title or, if it has none, its first words. Longer ones
retrieved worse."""

MOST_OPENING = 10.0
"""Largest weight of the opening. With more, a document's chunks are nearly the same."""


class Shares(NamedTuple):
    """What a chunk's vector is made of besides the late chunk."""

    alone: float
    opening: float
    title: float
    """Replaces the opening's, where the document has a title, given or found at its beginning."""

    linked: bool = False
    """Whether passages read alone know their document by LLN; see engine/model/linked_pass.py."""


SHARES: dict[Context, Shares] = {
    "balanced": Shares(alone=0.5, opening=0.3, title=0.45),
    "late": Shares(alone=0.0, opening=0.0, title=0.0),
    "alone": Shares(alone=1.0, opening=0.0, title=0.0),
    "title": Shares(alone=0.5, opening=1.0, title=1.0),
    "opening": Shares(alone=1.0, opening=0.3, title=0.45),
    "one_pass": Shares(alone=0.0, opening=0.2, title=0.75),
    "linked": Shares(alone=1.0, opening=0.3, title=0.45, linked=True),
}
"""What each context means. docs/evaluation/passages.md has the measurements."""

NO_SHARES = Shares(alone=0.0, opening=0.0, title=0.0)

MAX_CHUNKS = 65_536
"""Limit for one document, whose vectors are all in memory at once."""


class ChunkSpan(NamedTuple):
    """The tokens and characters of one chunk."""

    tokens: Span  # of the token sequence, special tokens included
    characters: Span  # of the original text; (0, 0) for token input
    headings: tuple[str, ...] = ()


class Source(NamedTuple):
    """What chunking needs to know of a text besides its tokens."""

    content: str = ""  # filled if `needs_content` is true
    num_characters: int = 0
    was_truncated: bool = False


_NO_TEXT = Source()


def check_chunking(plan: Chunking) -> None:
    """Rejects plans that are invalid for every text."""
    if plan.context is not None:
        check_context(plan.context, "chunking.context")
    if plan.opening is not None:
        _check_size("opening", plan.opening, least=0, most=MOST_OPENING)
    if plan.alone is not None:
        _check_size("alone", plan.alone, least=0, most=1)
    if isinstance(plan, ChunkPlan):
        _check_size("tokens", plan.tokens, least=1)
        _check_size("overlap", plan.overlap, least=0, most=plan.tokens - 1)
    elif isinstance(plan, SentencePlan):
        _check_size("max_tokens", plan.max_tokens, least=1)
        _check_size("min_tokens", plan.min_tokens, least=1, most=plan.max_tokens)
    elif isinstance(plan, HeadingPlan):
        _check_size("max_tokens", plan.max_tokens, least=1)
        _check_format(plan.format)
    else:
        check_count(len(plan.spans))
        for index, span in enumerate(plan.spans):
            _check_span(index, span)


def check_context(context: str, param: str) -> None:
    if context not in SHARES:
        raise InvalidInput(
            f"context must be one of {', '.join(SHARES)}, got {shown(context)!r}",
            code="invalid_chunking",
            param=param,
            limit=", ".join(SHARES),
            actual=str(context),
        )


def settled(plan: Chunking, own: Context) -> Chunking:
    """The plan with the model's own context, unless it states one."""
    return replace(plan, context=own) if plan.context is None else plan


def shares_of(plan: Chunking) -> Shares:
    """The shares of a settled plan's context, unless the plan states its own."""
    assert plan.context is not None, "the plan is settled"
    shares = SHARES[plan.context]
    return Shares(
        alone=shares.alone if plan.alone is None else plan.alone,
        opening=shares.opening if plan.opening is None else plan.opening,
        title=shares.title if plan.opening is None else plan.opening,
        linked=shares.linked,
    )


def contexts(*, of_records: bool = False, titled: bool = False) -> str:
    """The contexts that documents with records may have, or in which a document's title counts."""
    return ", ".join(
        name
        for name, shares in SHARES.items()
        if not (of_records and shares.linked) and (shares.opening or not titled)
    )


def needs_content(plan: Chunking | None) -> bool:
    """Whether chunking reads the text itself and not only its tokens."""
    return isinstance(plan, SentencePlan | HeadingPlan)


def plan_chunks(num_content_tokens: int, plan: ChunkPlan) -> list[Span]:
    """Fixed chunks of this many content tokens, counted from 0.

    Every token is in a chunk. The last chunk has at least one token that is in no other.
    """
    check_chunking(plan)
    step = plan.tokens - plan.overlap
    # The last chunk is the first one to reach the end.
    num_starts = 1 + max(0, -(-(num_content_tokens - plan.tokens) // step))
    check_count(num_starts)
    starts = range(0, num_starts * step, step) if num_content_tokens else ()
    return [Span(start, min(start + plan.tokens, num_content_tokens)) for start in starts]


def chunk_spans(encoded: Encoded, plan: Chunking, source: Source = _NO_TEXT) -> list[ChunkSpan]:
    """The chunks of one encoded document, without its special tokens.

    A passage without tokens, such as white space, gives no chunk. A caller's span without tokens is
    an error.
    """
    check_chunking(plan)
    first = encoded.num_prefix
    offsets = encoded.offsets[first : first + encoded.num_content]
    if isinstance(plan, SpanPlan):
        chunks = _of_spans(ContentTokens(offsets), plan, source)
    elif isinstance(plan, ChunkPlan):
        fixed = plan_chunks(len(offsets), plan)
        chunks = [ChunkSpan(tokens, character_span(offsets, tokens)) for tokens in fixed]
    elif len(offsets) == 0:
        chunks = []
    elif isinstance(plan, SentencePlan):
        chunks = _of_sentences(ContentTokens(offsets), plan, source)
    else:
        chunks = _of_sections(ContentTokens(offsets), plan, source)
    check_count(len(chunks))
    for place, chunk in enumerate(chunks):  # in place: there may be tens of thousands
        chunks[place] = _shifted(chunk, first)
    return chunks


def _of_spans(content: ContentTokens, plan: SpanPlan, source: Source) -> list[ChunkSpan]:
    chunks = []
    for index, span in enumerate(plan.spans):
        _check_inside(index, span, source.num_characters)
        tokens = content.touching(span)
        if tokens.start == tokens.end:
            raise _no_tokens(index, span)
        chunks.append(ChunkSpan(tokens, span))
    return chunks


def _of_sentences(content: ContentTokens, plan: SentencePlan, source: Source) -> list[ChunkSpan]:
    found = content.passages(sentences(source.content), content.all)
    sized = content.sized(found, min_tokens=plan.min_tokens, max_tokens=plan.max_tokens)
    return [_chunk(passage, content, source) for passage in sized]


def _of_sections(content: ContentTokens, plan: HeadingPlan, source: Source) -> list[ChunkSpan]:
    found = sections(source.content, plan.format)
    pieces = [_trimmed(source.content, section.characters) for section in found]
    return [
        _chunk(part, content, source, found[passage.piece].headings)
        for passage in content.passages(pieces, content.all)
        for part in _parts(content, passage, plan.max_tokens, source.content)
    ]


def _parts(content: ContentTokens, section: Passage, max_tokens: int, text: str) -> list[Passage]:
    """The section, or groups of its sentences if it is too long."""
    if section.num_tokens <= max_tokens:
        return [section]
    start, end = section.characters
    pieces = [Span(start + span.start, start + span.end) for span in sentences(text[start:end])]
    found = content.passages(pieces, section.tokens)
    return content.sized(found, min_tokens=max_tokens, max_tokens=max_tokens)


def _chunk(
    passage: Passage, content: ContentTokens, source: Source, headings: tuple[str, ...] = ()
) -> ChunkSpan:
    """Characters that truncation dropped are not part of the first or last chunk."""
    start, end = passage.characters
    if source.was_truncated:
        start, end = max(start, content.extent.start), min(end, content.extent.end)
        if start >= end:  # its tokens are only white space around the passage
            start, end = content.characters(passage.tokens)
    return ChunkSpan(passage.tokens, Span(start, end), headings)


def _trimmed(text: str, span: Span) -> Span:
    """The span without white space around it; all of it if there is nothing else."""
    piece = text[span.start : span.end]
    content = piece.strip()
    start = span.start + len(piece) - len(piece.lstrip())
    return Span(start, start + len(content)) if content else span


def _shifted(chunk: ChunkSpan, first: int) -> ChunkSpan:
    """The chunk with its tokens counted from the start of the sequence."""
    tokens = Span(first + chunk.tokens.start, first + chunk.tokens.end)
    return chunk._replace(tokens=tokens)


def _check_size(name: str, value: float, *, least: int, most: float | None = None) -> None:
    if value >= least and (most is None or value <= most):
        return
    bounds = f"at least {least}" if most is None else f"{least} to {most:g}"
    raise InvalidInput(
        f"{name} of a chunk must be {bounds}, got {shown(value)}",
        code="invalid_chunking",
        param=f"chunking.{name}",
        limit=least if value < least else most,
        actual=value,
    )


def _check_format(form: str) -> None:
    known = get_args(HeadingFormat)
    if form not in known:
        raise InvalidInput(
            f"format must be one of {', '.join(known)}, got {form!r}",
            code="invalid_chunking",
            param="chunking.format",
            limit=", ".join(known),
            actual=str(form),
        )


def check_count(count: int) -> None:
    """Raises InvalidInput if a document would have too many chunks."""
    if count > MAX_CHUNKS:
        raise InvalidInput(
            f"the document would have {count} chunks, the limit is {MAX_CHUNKS}; "
            "ask for larger ones",
            code="too_many_chunks",
            param="chunking",
            limit=MAX_CHUNKS,
            actual=count,
        )


def _check_span(index: int, span: Span) -> None:
    if not 0 <= span.start < span.end:
        raise InvalidInput(
            f"a span must start at 0 or later and end after its start, "
            f"got {span.start} to {span.end}",
            code="invalid_chunking",
            param=f"chunking.spans[{index}]",
            limit=0,
            actual=f"{span.start}:{span.end}",
        )


def _check_inside(index: int, span: Span, num_characters: int) -> None:
    if span.end > num_characters:
        raise InvalidInput(
            f"the text has {num_characters} characters, the span ends at {span.end}",
            code="invalid_chunking",
            param=f"chunking.spans[{index}]",
            limit=num_characters,
            actual=span.end,
        )


def _no_tokens(index: int, span: Span) -> InvalidInput:
    return InvalidInput(
        f"the span {span.start} to {span.end} has no tokens: it is only white space, "
        "or truncation dropped it",
        code="empty_chunk",
        param=f"chunking.spans[{index}]",
        actual=f"{span.start}:{span.end}",
    )
