"""The passages of a document that LLN links, as one text for the device."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.errors import InvalidInput
from engine.execution.inputs import PreparedText, passages_alone
from engine.model.embedding_model import EmbeddingModel
from engine.model.linked_pass import longest_passage
from engine.model.tiled_pass import can_tile
from engine.text.linked_passages import linked_rows, num_linked
from engine.types import Span

_MOST_READ = 4
"""How many times the longest document's tokens passages that overlap may have."""


@dataclass(frozen=True, kw_only=True)
class LinkedText(PreparedText):
    """The document's passages, each between special tokens. Its spans are the rows of all of them,
    and those of each."""

    bounds: tuple[int, ...]  # of what is read together: passages, or parts of long ones
    around: tuple[int, int]  # tokens before and after the own ones of each

    @property
    def is_tiled(self) -> bool:
        return True


def with_links(document: PreparedText, model: EmbeddingModel) -> PreparedText:
    """The document with its passages linked. In a model without LLN there is nothing to link them
    by, and they are read alone."""
    if not document.chunks or not can_tile(model.encoder):
        return document
    tokenizer = model.tokenizer
    content = document.content_rows(tokenizer)
    passages = list(passages_alone(document, tokenizer))
    _check_fits(num_linked(passages, content), model)
    rows = linked_rows(
        *(document.ids, passages, content, tokenizer),
        longest=longest_passage(model.encoder),
        prompt=document.prompt_ids(tokenizer),
    )
    linked = LinkedText(
        ids=rows.ids,
        spans=(Span(0, len(rows.ids)), *rows.passages),
        chunks=(),
        num_tokens=len(rows.ids),
        dropped=None,
        bounds=rows.bounds,
        around=rows.around,
    )
    return replace(document, linked=linked)


def _check_fits(num_tokens: int, model: EmbeddingModel) -> None:
    limit = _MOST_READ * model.info.max_tokens
    if num_tokens > limit:
        raise InvalidInput(
            f"the document's chunks overlap so far that they have {num_tokens} tokens; linked "
            f'chunks may have {limit}. Ask for less overlap, or for the context "balanced"',
            code="too_many_tokens",
            param="chunking",
            limit=limit,
            actual=num_tokens,
        )
