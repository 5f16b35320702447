"""Reads a document on in rounds, until no kept segment is more stale than its caller allows."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from engine.errors import InvalidInput
from engine.living.prepare import LivingDocument, prepare_living_steps
from engine.living.record import DocumentRecord
from engine.living.update import ReadVectors, answer_of, record_of, staleness_of
from engine.model.embedding_model import EmbeddingModel
from engine.steps import Steps
from engine.types import Chunking, EmbedOptions, LivingEmbedding, RecordPrecision

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
    ) -> None:
        check_staleness(max_staleness, exact)
        self.text = text
        self._model = model
        self.options = options
        self._chunking = chunking
        self._title = title
        self._record = record
        self._max_staleness = max_staleness
        self._precision = precision
        self._read_again: Container[int] = EVERY_SEGMENT if exact else ()
        self._rounds = 0
        self._tokens_read = 0

    def prepare(self) -> Steps[LivingDocument]:
        return prepare_living_steps(
            *(self.text, self._model, self.options, self._chunking),
            title=self._title,
            record=self._record,
            read_again=self._read_again,
        )

    def take(self, document: LivingDocument, read: ReadVectors) -> LivingEmbedding | None:
        """The answer, or None if another round is to be read."""
        self._rounds += 1
        record = record_of(document, read, self._model, self._precision)
        stale = self._too_stale(document, record)
        if stale:
            fresh = {index for index, part in enumerate(document.parts) if part.kept is None}
            is_last = self._rounds + 1 == MOST_ROUNDS
            self._read_again = EVERY_SEGMENT if is_last else fresh | stale
            self._tokens_read += document.num_read
            return None
        return answer_of(
            *(document, record, read, self._model),
            rounds=self._rounds,
            tokens_read=self._tokens_read,
        )

    def _too_stale(self, document: LivingDocument, record: DocumentRecord) -> set[int]:
        if self._max_staleness is None:
            return set()
        staleness = staleness_of(record, self._model)
        return {
            index
            for index, (part, stale) in enumerate(zip(document.parts, staleness, strict=True))
            if part.kept is not None and stale > self._max_staleness
        }


def options_of(record: DocumentRecord, options: EmbedOptions) -> EmbedOptions:
    """The caller's options, with the record's prompt unless they name one."""
    return replace(options, prompt_name=options.prompt_name or record.prompt_name)


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
