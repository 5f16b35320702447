"""Reads a document on in rounds, until no kept segment is more stale than its caller allows."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import get_args

from engine.errors import InvalidInput, unknown_name
from engine.execution.told_titles import check_title
from engine.living.prepare import LivingDocument, prepare_living_steps
from engine.living.record import DocumentRecord
from engine.living.update import ReadVectors, Work, answer_of, record_of, staleness_of
from engine.living_types import LivingEmbedding, RecordPrecision
from engine.model.embedding_model import EmbeddingModel
from engine.steps import Steps
from engine.text.chunking import check_chunking, settled
from engine.types import Chunking, EmbedOptions

EVERY_SEGMENT = range(1 << 62)
MOST_ROUNDS = 4
"""The last of these reads every segment."""


class Rounds:
    """One answer: prepare a round, read what it asks for, and take what was read, until `take`
    returns the answer."""

    def __init__(
        self,
        text: str,
        model: EmbeddingModel,
        options: EmbedOptions,
        chunking: Chunking | None,
        *,
        title: str | None = None,
        record: DocumentRecord | None = None,
        max_staleness: float | None = None,
        exact: bool = False,
        precision: RecordPrecision = "float32",
        folded: bool = False,
    ) -> None:
        check_staleness(max_staleness, exact)
        check_precision(precision)
        if chunking is not None:
            check_chunking(chunking)
            chunking = settled(chunking, model.info.chunk_context)
        # A record keeps its title also while its chunks do not use it.
        if title is not None and (record is None or title != record.titles.told):
            check_title(title, chunking, has_record=True)
        self.text = text
        self._model = model
        self.options = options
        self._chunking = chunking
        self._title = title
        self._before = self._record = record
        self._max_staleness = max_staleness
        self._precision = precision
        self._folded = folded
        self._read_again: Container[int] = EVERY_SEGMENT if exact else ()
        self._work = Work()

    def prepare(self) -> Steps[LivingDocument]:
        return prepare_living_steps(
            *(self.text, self._model, self.options, self._chunking),
            title=self._title,
            record=self._record,
            read_again=self._read_again,
        )

    def take(self, document: LivingDocument, read: ReadVectors) -> LivingEmbedding | None:
        """The answer, or None if another round is to be read."""
        self._work.add(document, read)
        record = record_of(document, read, self._model, self._precision, folded=self._folded)
        stale = self._too_stale(record)
        if not stale:
            return answer_of(document, record, self._model, self._work, self._before)
        # What this round read is kept by the next, unless the rest moves it too far.
        is_last = self._work.rounds + 1 == MOST_ROUNDS
        # A folded segment falls apart when it is read, and then others have other numbers.
        reads_all = is_last or any(record.segments[index].num_sealed for index in stale)
        self._record, self._read_again = record, EVERY_SEGMENT if reads_all else stale
        return None

    def _too_stale(self, record: DocumentRecord) -> set[int]:
        limit = self._max_staleness
        if limit is None:
            return set()
        staleness = staleness_of(record, self._model)
        return {index for index, stale in enumerate(staleness) if stale > limit}


_DEFAULTS = EmbedOptions()


def rounds_from(
    record: DocumentRecord,
    text: str,
    model: EmbeddingModel,
    options: EmbedOptions = _DEFAULTS,
    *,
    chunks: Chunking | None = None,
    title: str | None = None,
    max_staleness: float | None = None,
    exact: bool = False,
) -> Rounds:
    """The rounds that read a document on. What is not given is as in the record; an empty title
    takes away the record's."""
    return Rounds(
        text,
        model,
        replace(options, prompt_name=options.prompt_name or record.prompt_name),
        chunks or record.chunking,
        title=record.titles.told if title is None else title or None,
        record=record,
        max_staleness=max_staleness,
        exact=exact,
        precision=record.precision,
        folded=record.folded,
    )


def check_precision(precision: str) -> None:
    """Rejected before the document is read, not when its record is written."""
    known = get_args(RecordPrecision)
    if precision not in known:
        raise unknown_name(
            "record precision",
            precision,
            known,
            param="record_precision",
            code="invalid_record_precision",
        )


def check_staleness(max_staleness: float | None, exact: bool) -> None:
    if max_staleness is None:
        return
    if exact:
        raise InvalidInput(
            "exact reads every segment again, so max_staleness has no meaning beside it",
            code="invalid_staleness",
            param="max_staleness",
            actual=max_staleness,
        )
    if not 0 <= max_staleness <= 1:  # NaN too
        raise InvalidInput(
            f"max_staleness must be 0 to 1, got {max_staleness}",
            code="invalid_staleness",
            param="max_staleness",
            limit=1,
            actual=max_staleness,
        )
