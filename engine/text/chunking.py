"""Splits an encoded document into late chunks, each a range of tokens and of characters.

- Fixed chunks are ranges of tokens (`plan_chunks`).
- Sentences and sections are found in the text, then joined or split to the requested sizes. Every
  content token is in exactly one of them.
- The caller's own spans contain every token that has a character in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, get_args

import numpy as np

from engine.errors import InvalidInput, shown
from engine.text.headings import sections
from engine.text.sentences import sentences
from engine.text.tokenizer import Encoded
from engine.types import (
    Chunking,
    ChunkPlan,
    Context,
    HeadingFormat,
    HeadingPlan,
    Ids,
    Offsets,
    SentencePlan,
    Span,
    SpanPlan,
)

OPENING_TOKENS = 32
"""Length of a document's opening, its title and first words. Longer openings retrieved worse."""

MOST_OPENING = 10.0
"""Largest weight of the opening. With more, a document's chunks are nearly the same."""


class Shares(NamedTuple):
    """What a chunk's vector is made of besides the late chunk."""

    alone: float
    opening: float


SHARES: dict[Context, Shares] = {
    "balanced": Shares(alone=0.5, opening=0.3),
    "late": Shares(alone=0.0, opening=0.0),
    "alone": Shares(alone=1.0, opening=0.0),
    "title": Shares(alone=0.5, opening=1.0),
}
"""What each context means. docs/evaluation.md has the measurements."""

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
    check_context(plan.context, "chunking.context")
    shares = shares_of(plan)
    _check_size("opening", shares.opening, least=0, most=MOST_OPENING)
    _check_size("alone", shares.alone, least=0, most=1)
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


def shares_of(plan: Chunking) -> Shares:
    """The shares of the plan's context, unless the plan states its own."""
    shares = SHARES[plan.context]
    return Shares(
        alone=shares.alone if plan.alone is None else plan.alone,
        opening=shares.opening if plan.opening is None else plan.opening,
    )


def needs_content(plan: Chunking | None) -> bool:
    """Whether chunking reads the text itself and not only its tokens."""
    return isinstance(plan, SentencePlan | HeadingPlan)


def plan_chunks(num_content_tokens: int, plan: ChunkPlan) -> list[Span]:
    """Fixed chunks of so many content tokens, counted from 0.

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
    return [_shifted(chunk, first) for chunk in chunks]


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


class Passage(NamedTuple):
    """A part of the text with its tokens."""

    tokens: Span  # counted from the first content token
    characters: Span
    piece: int = 0  # index of the piece of text that it was made from

    @property
    def num_tokens(self) -> int:
        return self.tokens.end - self.tokens.start

    def joined(self, following: Passage) -> Passage:
        tokens = Span(self.tokens.start, following.tokens.end)
        return Passage(tokens, Span(self.characters.start, following.characters.end), self.piece)


class ContentTokens:
    """The content tokens of a document, found by their characters."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        # Normalisers may swap neighbouring marks, so a token may begin before the one before it.
        self._starts: Ids = np.maximum.accumulate(offsets[:, 0])
        self._ends: Ids = np.maximum.accumulate(offsets[:, 1])

    @property
    def all(self) -> Span:
        return Span(0, len(self._offsets))

    @property
    def extent(self) -> Span:
        """From the first character of any token to the last."""
        return Span(int(self._starts[0]), int(self._ends[-1]))

    def characters(self, tokens: Span) -> Span:
        return character_span(self._offsets, tokens)

    def touching(self, characters: Span) -> Span:
        """The tokens that have a character in a span; an empty range if there are none."""
        first = int(np.searchsorted(self._ends, characters.start, side="right"))
        end = int(np.searchsorted(self._starts, characters.end, side="left"))
        return Span(first, max(first, end))

    def passages(self, pieces: Sequence[Span], within: Span) -> list[Passage]:
        """The pieces of the text as passages, in order. Pieces without tokens are left out.

        Each token of `within` is in one passage: the last that begins before the token ends, or
        the first if none does.
        """
        if within.start == within.end:
            return []
        # A text of white space has no pieces, but some tokenizers make a token of it.
        pieces = pieces or [self.characters(within)]
        # By a token's end, since its start may be the space before its word.
        bounds = np.searchsorted(self._ends, [piece.start for piece in pieces], side="right")
        starts = np.clip(bounds, within.start, within.end).tolist()
        starts[:1] = [within.start]
        spans = (Span(start, end) for start, end in pairwise([*starts, within.end]))
        return [
            Passage(span, characters, index)
            for index, (span, characters) in enumerate(zip(spans, pieces, strict=True))
            if span.start < span.end
        ]

    def sized(
        self, passages: Iterable[Passage], *, min_tokens: int, max_tokens: int
    ) -> list[Passage]:
        """Splits passages that are too large, and joins neighbours that are too small."""
        found: list[Passage] = []
        for passage in chain.from_iterable(self._split(item, max_tokens) for item in passages):
            if found and found[-1].num_tokens < min_tokens and _fit(found[-1], passage, max_tokens):
                found[-1] = found[-1].joined(passage)
            else:
                found.append(passage)
        if len(found) < 2:
            return found
        *before, beside, last = found
        is_small = last.num_tokens < min_tokens and _fit(beside, last, max_tokens)
        return [*before, beside.joined(last)] if is_small else found

    def _split(self, passage: Passage, max_tokens: int) -> list[Passage]:
        """Splits into as few parts as possible, of about the same size."""
        count = -(-passage.num_tokens // max_tokens)
        if count == 1:
            return [passage]
        first = passage.tokens.start
        bounds = [first + passage.num_tokens * part // count for part in range(count + 1)]
        parts = [Span(start, end) for start, end in pairwise(bounds)]
        spans = [self.characters(tokens) for tokens in parts]
        # Characters without tokens, such as marks, stay with the tokens beside them.
        start, end = passage.characters
        spans[0] = Span(min(start, spans[0].start), spans[0].end)
        spans[-1] = Span(spans[-1].start, max(end, spans[-1].end))
        return [
            Passage(tokens, characters, passage.piece)
            for tokens, characters in zip(parts, spans, strict=True)
        ]


def character_span(offsets: Offsets, tokens: Span) -> Span:
    """From the first character of these tokens to the last; there must be at least one token."""
    part = offsets[tokens.start : tokens.end]
    return Span(int(part[:, 0].min()), int(part[:, 1].max()))


def _fit(one: Passage, other: Passage, max_tokens: int) -> bool:
    return one.num_tokens + other.num_tokens <= max_tokens


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
