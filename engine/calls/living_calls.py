"""Documents with a record: read whole the first time, and where they changed from then on."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from engine.calls.core import DEFAULTS
from engine.calls.document_calls import DocumentCalls, OnDocumentEvent
from engine.execution.input_checks import check_text
from engine.execution.inputs import PreparedText
from engine.execution.results import WholeProgress
from engine.living.price import plan_of_segments, plan_of_update
from engine.living.record import DocumentRecord
from engine.living.record_bytes import from_bytes
from engine.living.rounds import Rounds, rounds_from
from engine.living.segmented_text import SegmentedText
from engine.living.update import ReadVectors
from engine.living_types import LivingEmbedding, RecordPrecision
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.deadline import Deadline
from engine.scheduling.session import Session
from engine.steps import one_step
from engine.types import Chunking, EmbedOptions, Plan, Vector


class LivingCalls(DocumentCalls):
    """Embeds documents with records, and reads them on."""

    async def embed_living_document(
        self,
        text: str,
        *,
        model: str | None = None,
        chunks: Chunking | None = None,
        title: str | None = None,
        options: EmbedOptions = DEFAULTS,
        precision: RecordPrecision = "float32",
        fold: bool = False,
        timeout_s: float | None = None,
        on_event: OnDocumentEvent | None = None,
    ) -> LivingEmbedding:
        """A document read segment by segment, with the record to read it on after a change; with a
        small one if it is folded, for a document that only grows."""
        with self._counting_rejections():
            chosen = self._document_model(model, options)
            check_text(text, "text")
            rounds = Rounds(
                *(text, chosen, options, chunks), title=title, precision=precision, folded=fold
            )
        return await self._in_rounds(rounds, chosen, Deadline(timeout_s), on_event)

    async def update_document(
        self,
        record: bytes,
        text: str,
        *,
        model: str | None = None,
        chunks: Chunking | None = None,
        title: str | None = None,
        options: EmbedOptions = DEFAULTS,
        max_staleness: float | None = None,
        exact: bool = False,
        timeout_s: float | None = None,
        on_event: OnDocumentEvent | None = None,
    ) -> LivingEmbedding:
        """The document as it is now: only segments that its record does not hold are read.

        With `max_staleness`, kept segments that may be further from a fresh reading are read again
        too; with `exact`, all are. Without `chunks` or `title`, those of the record hold; an
        empty title takes away the record's.
        """
        deadline = Deadline(timeout_s)
        with self._counting_rejections():
            chosen = self._document_model(model, options)
            check_text(text, "text")
            kept = await self._open_record(record, chosen, deadline)
            rounds = rounds_from(
                *(kept, text, chosen, options),
                chunks=chunks,
                title=title,
                max_staleness=max_staleness,
                exact=exact,
            )
        return await self._in_rounds(rounds, chosen, deadline, on_event)

    async def plan_update(
        self,
        record: bytes,
        text: str,
        *,
        model: str | None = None,
        timeout_s: float | None = None,
    ) -> Plan:
        """What `update_document` would take for this text, without anything read again for its
        staleness. No device is used."""
        deadline = Deadline(timeout_s)
        with self._counting_rejections():
            chosen = self._model(model)
            check_text(text, "text")
            kept = await self._open_record(record, chosen, deadline)
            rounds = rounds_from(kept, text, chosen)
            async with deadline.over():
                document = await self._tokenise(
                    rounds.prepare(), lambda found: found.num_read, characters=len(text)
                )
            return plan_of_update(document, chosen, self._planner)

    async def _open_record(
        self, record: bytes, model: EmbeddingModel, deadline: Deadline
    ) -> DocumentRecord:
        """Off the event loop: a checksum over tens of megabytes takes a while."""
        async with deadline.over():
            return await self._pool.run(
                one_step(partial(from_bytes, record, model)), characters=len(record)
            )

    async def _in_rounds(
        self,
        rounds: Rounds,
        model: EmbeddingModel,
        deadline: Deadline,
        on_event: OnDocumentEvent | None,
    ) -> LivingEmbedding:
        """One session for all rounds: a call that has begun is not refused its later ones."""
        characters = len(rounds.text)
        is_admitted = False
        with self._worker.session() as session:
            while True:
                with self._counting_rejections():
                    async with deadline.over():
                        document = await self._tokenise(
                            rounds.prepare(),
                            lambda found: found.num_read,
                            characters=characters,
                            is_admitted=is_admitted,
                        )
                read = await self._read_segments(
                    session, document.segmented, model, rounds.options, deadline, on_event
                )
                is_admitted = True
                take = one_step(partial(rounds.take, document, read))
                async with deadline.over():
                    answer = await self._pool.run(take, characters=characters, is_admitted=True)
                if answer is not None:
                    return answer

    async def _read_segments(
        self,
        session: Session[PreparedText, Vector],
        text: SegmentedText | None,
        model: EmbeddingModel,
        options: EmbedOptions,
        deadline: Deadline,
        on_event: OnDocumentEvent | None,
    ) -> ReadVectors:
        if text is None:
            return ReadVectors()
        with self._counting_rejections():
            plan = plan_of_segments(text, model, self._planner)
            self._planner.admit(plan, deadline)
            request = self._request(model, text, options, deadline)
        progress = None if on_event is None else WholeProgress(plan, on_event)
        alone = await self._read_alone(
            *(session, model, text, options, deadline, progress),
            later_tokens=text.num_embedded,
        )
        if progress is not None:
            request = replace(request, on_event=progress.report_tiled)
        with deadline.as_a_whole():
            (future,) = session.submit([request], deadline.left_s)
            try:
                result = await future
            finally:
                future.cancel()
        self._record(model, [text], [result])
        return ReadVectors(result, alone)
