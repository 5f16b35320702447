"""A document as it is now: what its record still holds of it, and what is to be read."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from engine.errors import InvalidInput
from engine.execution.input_checks import check_pools, check_text
from engine.execution.prompts import prompt_ids_of
from engine.living.part_chunks import with_chunks
from engine.living.parts import Part, parts_of
from engine.living.record import DocumentRecord
from engine.living.segmented_text import SegmentedText, segmented_text
from engine.model.embedding_model import EmbeddingModel
from engine.model.tiled_pass import block_size, can_tile
from engine.steps import Steps
from engine.text.chunking import NO_SHARES, Shares, contexts, shares_of
from engine.text.headings.sections import detect_format
from engine.text.titles import NO_TITLES, Titles, titles_of
from engine.text.truncation import never_truncated, too_long
from engine.types import Chunking, EmbedOptions, HeadingFormat, HeadingPlan, Ids, SpanPlan


@dataclass(frozen=True, kw_only=True)
class LivingDocument:
    """A document as it is now, with what its record still holds of it."""

    text: str
    options: EmbedOptions
    chunking: Chunking | None
    titles: Titles
    shares: Shares
    parts: tuple[Part, ...]
    record: DocumentRecord | None
    num_tokens: int
    num_before: int  # tokens before the first of the text: special ones and those of a prompt
    block_size: int
    segmented: SegmentedText | None  # None if there is nothing to read
    heading_format: HeadingFormat | None = None  # by which chunks of sections are cut

    @property
    def share_of_opening(self) -> float:
        return self.shares.opening if self.titles == NO_TITLES else self.shares.title

    @property
    def num_read(self) -> int:
        return 0 if self.segmented is None else self.segmented.num_embedded


def prepare_living_steps(
    text: str,
    model: EmbeddingModel,
    options: EmbedOptions,
    chunking: Chunking | None,
    *,
    title: str | None = None,
    record: DocumentRecord | None = None,
    read_again: Container[int] = (),
) -> Steps[LivingDocument]:
    """Reads the text as far as the record does not know it. `read_again` are segments of the
    document as it is now that are read although they are known. The chunking is settled."""
    check_living(text, model, options, chunking)
    cut_by = _with_format(chunking, text)
    heading_format = cut_by.format if isinstance(cut_by, HeadingPlan) else None
    if record is not None and not _is_of(record, options, chunking, heading_format):
        record = None
    prompt = prompt_ids_of(options, model)
    around = model.tokenizer.num_special + len(prompt)

    def check_fits(num_content: int) -> None:
        num_tokens, limit = num_content + around, model.info.max_tokens
        if num_tokens > limit:
            with never_truncated():
                raise too_long(num_tokens, limit, "text", has_ended=False)

    parts = yield from parts_of(text, title, model.tokenizer, record, read_again, check_fits)
    num_tokens = sum(part.num_content for part in parts) + around
    block = block_size(model.encoder, num_tokens)
    if record is not None and not _reads_alike(record, num_tokens, block):
        record = None
        parts = yield from parts_of(text, title, model.tokenizer, None, (), check_fits)
    titles = _titles(text, title, parts[0], record)
    parts = yield from with_chunks(parts, text, cut_by)
    document = _document(text, model, options, chunking, titles, parts, record, prompt, num_tokens)
    return replace(document, heading_format=heading_format)


def check_living(
    text: str,
    model: EmbeddingModel,
    options: EmbedOptions,
    chunking: Chunking | None,
) -> None:
    """Rejects what no record can be made of."""
    check_text(text, "text")
    check_pools(model)
    if not can_tile(model.encoder):
        raise InvalidInput(
            f"{model.name} has softmax attention, in which each token depends on all others; "
            "records need a model with LLN+Diag",
            code="no_records",
            param="model",
            actual=model.name,
        )
    if options.truncate != "error":
        raise InvalidInput(
            "a document with a record is never truncated; leave truncate out",
            code="invalid_truncate",
            param="truncate",
            limit="error",
            actual=options.truncate,
        )
    if isinstance(chunking, SpanPlan):
        raise InvalidInput(
            "chunks of a document with a record follow its segments: fixed, sentences or headings; "
            "spans of the caller's own cannot",
            code="invalid_chunking",
            param="chunking.type",
            limit="fixed, sentences, headings",
            actual="spans",
        )
    if chunking is not None:
        _check_not_linked(chunking)


def _check_not_linked(chunking: Chunking) -> None:
    if shares_of(chunking).linked:
        known = contexts(of_records=True)
        raise InvalidInput(
            f"a record keeps segments that are read whole, so chunks of a document with a record "
            f"cannot be {chunking.context}; contexts with records: {known}",
            code="invalid_chunking",
            param="chunking.context",
            limit=known,
            actual=chunking.context,
        )


def _with_format(chunking: Chunking | None, text: str) -> Chunking | None:
    """Sections by the format that the headings of this text seem to have."""
    if isinstance(chunking, HeadingPlan) and chunking.format == "auto":
        return replace(chunking, format=detect_format(text))
    return chunking


def _is_of(
    record: DocumentRecord,
    options: EmbedOptions,
    chunking: Chunking | None,
    heading_format: HeadingFormat | None,
) -> bool:
    """Whether the record's vectors are those that are asked for. If the format of headings seems to
    be another now, kept chunks end in the middle of sections, and sealed ones have old headings."""
    return (
        record.prompt_name == options.prompt_name
        and record.chunking == chunking
        and record.heading_format in (None, heading_format)
    )


def _reads_alike(record: DocumentRecord, num_tokens: int, block: int) -> bool:
    """Whether segments are read with blocks of the same size, and with LLN if they were."""
    same_lln = (record.num_tokens > record.block_size) == (num_tokens > block)
    return record.block_size == block and same_lln


def _titles(text: str, told: str | None, first: Part, record: DocumentRecord | None) -> Titles:
    """The title, if it stands in the first segment: it is read with it."""
    if record is not None and first.kept is not None:
        return record.titles
    return titles_of(text, told).within(first.characters.end)


def _document(
    text: str,
    model: EmbeddingModel,
    options: EmbedOptions,
    chunking: Chunking | None,
    titles: Titles,
    parts: Sequence[Part],
    record: DocumentRecord | None,
    prompt: Ids,
    num_tokens: int,
) -> LivingDocument:
    has_chunks = any(part.chunks for part in parts)
    shares = shares_of(chunking) if chunking is not None and has_chunks else NO_SHARES
    return LivingDocument(
        text=text,
        options=options,
        chunking=chunking,
        titles=titles,
        shares=shares,
        parts=tuple(parts),
        record=record,
        num_tokens=num_tokens,
        num_before=model.tokenizer.num_prefix + len(prompt),
        block_size=block_size(model.encoder, num_tokens),
        segmented=segmented_text(
            *(parts, model, options),
            shares=shares,
            titles=titles,
            record=record,
            prompt=prompt,
            length=num_tokens,
        ),
    )
