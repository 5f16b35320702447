"""Documents as vectors: the whole, its chunks, and the passages that are read alone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

from engine.calls.core import DEFAULTS
from engine.calls.text_runs import TextRuns
from engine.execution.document_stream import DocumentStream
from engine.execution.documents import DocumentReader, prepare_document_steps
from engine.execution.input_checks import check_options, check_pools, check_text
from engine.execution.inputs import PreparedText, batches, lengths_alone, texts_alone
from engine.execution.results import (
    ChunkBuilder,
    StandaloneVectors,
    WholeProgress,
    document_embedding,
)
from engine.model.embedding_model import EmbeddingModel
from engine.platform.turns import beside_others_if_many
from engine.scheduling.deadline import Deadline
from engine.scheduling.request import TimedResult
from engine.scheduling.session import Session
from engine.steps import Steps
from engine.types import (
    Chunking,
    ChunksReady,
    DocumentEmbedding,
    DocumentEvent,
    EmbedOptions,
    Plan,
    Progress,
    Vector,
)

T = TypeVar("T")

OnDocumentEvent: TypeAlias = Callable[[DocumentEvent], None]


class DocumentRun(NamedTuple):
    """A document that is to be run on the device, and for whom."""

    session: Session[PreparedText, Vector]
    model: EmbeddingModel
    document: PreparedText
    options: EmbedOptions
    deadline: Deadline
    on_event: OnDocumentEvent | None = None
    after_s: float = 0.0
    """What the documents take that the same call is reading already: this one lets others pass."""


RunPrepared: TypeAlias = Callable[[DocumentRun], Awaitable[T]]

Piece: TypeAlias = list[PreparedText]
Answers: TypeAlias = list[asyncio.Future[TimedResult[Vector]]]


class DocumentCalls(TextRuns):
    """Embeds single documents, and has the steps for the calls that embed several."""

    async def embed_document(
        self,
        text: str,
        *,
        model: str | None = None,
        chunks: Chunking | None = None,
        title: str | None = None,
        options: EmbedOptions = DEFAULTS,
        timeout_s: float | None = None,
        on_event: OnDocumentEvent | None = None,
    ) -> DocumentEmbedding:
        """One vector for the whole document, and one for each of its late chunks. A title takes
        the place of the document's opening in the vectors of its chunks.

        `on_event` is called on the event loop with progress, and with chunks as they are ready.
        """
        deadline = Deadline(timeout_s)
        chosen, prepared = await self._read_text(text, model, options, chunks, title, deadline)
        with self._worker.session() as session:
            return await self._run_document(
                DocumentRun(session, chosen, prepared, options, deadline, on_event)
            )

    def open_document(
        self,
        *,
        model: str | None = None,
        chunks: Chunking | None = None,
        title: str | None = None,
        options: EmbedOptions = DEFAULTS,
        timeout_s: float | None = None,
        on_event: OnDocumentEvent | None = None,
    ) -> DocumentStream[DocumentEmbedding]:
        """The same for a document that arrives in pieces."""
        return self._open_stream(
            self._run_document, model, chunks, title, options, timeout_s, on_event
        )

    def _open_stream(
        self,
        run_prepared: RunPrepared[T],
        model: str | None,
        chunks: Chunking | None,
        title: str | None,
        options: EmbedOptions,
        timeout_s: float | None,
        on_event: OnDocumentEvent | None,
    ) -> DocumentStream[T]:
        """A document that is run once all of its pieces have arrived."""
        with self._counting_rejections():
            chosen = self._document_model(model, options)
            reader = DocumentReader(chosen, options, chunks, title=title, in_pieces=True)

        async def run(prepared: PreparedText, deadline: Deadline) -> T:
            with self._worker.session() as session:
                return await run_prepared(
                    DocumentRun(session, chosen, prepared, options, deadline, on_event)
                )

        deadline = Deadline(timeout_s)

        def tokenised(tokens: int, seconds: float) -> None:
            self._observer.tokenised(texts=1, tokens=tokens, seconds=seconds)

        return DocumentStream(
            reader, run, deadline, self._counting_rejections, self._pool, tokenised
        )

    async def _read_text(
        self,
        text: str,
        model: str | None,
        options: EmbedOptions,
        chunks: Chunking | None,
        title: str | None,
        deadline: Deadline,
    ) -> tuple[EmbeddingModel, PreparedText]:
        """The model, and the document as it reads it."""
        with self._counting_rejections():
            chosen = self._document_model(model, options)
            check_text(text, "text")
            steps = prepare_document_steps(text, chosen, options, chunks, title=title)
        (prepared,) = await self._read(_as_list(steps), deadline, characters=len(text))
        return chosen, prepared

    def _document_model(self, name: str | None, options: EmbedOptions) -> EmbeddingModel:
        chosen = self._model(name)
        check_options(options, chosen)
        check_pools(chosen)
        return chosen

    async def _run_document(self, run: DocumentRun) -> DocumentEmbedding:
        session, model, document, options, deadline, on_event, after_s = run
        with self._counting_rejections():
            plan = self._document_plan(model, document)
            self._planner.admit(plan, deadline)
            request = self._request(model, document, options, deadline)
            request = replace(request, after_s=after_s)
        progress = None if on_event is None else WholeProgress(plan, on_event)
        # Before the document itself, whose chunks are reported as soon as they are final.
        later = document.num_embedded
        alone = await self._read_alone(
            *(session, model, document, options, deadline, progress),
            later_tokens=later,
            after_s=after_s,
        )
        if progress is not None:
            chunks = ChunkBuilder(document, options, alone)
            request = replace(request, on_event=partial(progress.report, chunks))
        with deadline.as_a_whole():
            (future,) = session.submit([request], deadline.left_s)
            self._count_truncated(model, [document])
            try:
                result = await future
            finally:
                future.cancel()
        self._record(model, [document], [result])
        embedded = await beside_others_if_many(
            partial(document_embedding, document, result, options, alone), len(document.chunks)
        )
        if on_event is not None and not request.is_tiled:
            _report_at_once(embedded, document.num_embedded, on_event)
        return embedded

    def _document_plan(self, model: EmbeddingModel, document: PreparedText) -> Plan:
        """The plan of a document, with what is read alone for it."""
        lengths = lengths_alone(document, model.tokenizer)
        return self._planner.with_alone(
            model,
            self._planner.plan(model, document.num_embedded),
            count=len(lengths),
            tokens=sum(lengths),
        )

    async def _read_alone(
        self,
        session: Session[PreparedText, Vector],
        model: EmbeddingModel,
        document: PreparedText,
        options: EmbedOptions,
        deadline: Deadline,
        progress: WholeProgress | None,
        *,
        later_tokens: int,
        after_s: float = 0.0,
    ) -> StandaloneVectors:
        """Read the document's title and passages as texts of their own, if it asks for them.
        So many tokens of it are read after them, and other documents of its call take `after_s`.

        Chunks that overlap may have many times the document's tokens. So only two pieces of a
        batch's size are in memory and in the queue at a time, and other texts wait for no more.
        """
        pieces = batches(
            texts_alone(document, model.tokenizer),
            max_tokens=self.config.batch_tokens_on(model.encoder.device.type),
            max_texts=self.config.max_batch_sequences,
        )
        results: list[TimedResult[Vector]] = []
        num_tokens = 0

        def report(event: object) -> None:
            if progress is not None and isinstance(event, Progress) and event.tokens_done:
                progress.report_alone(num_tokens + event.tokens_done)

        submit = partial(
            self._submit_piece, session, model, options, deadline, later_tokens, after_s, report
        )
        with deadline.as_a_whole():
            async with aclosing(_two_at_a_time(pieces, submit)) as read:
                async for piece, found in read:
                    self._record(model, piece, found)
                    results.extend(found)
                    num_tokens += sum(text.num_embedded for text in piece)
                    if progress is not None:
                        progress.report_alone(num_tokens)
        return StandaloneVectors.of(results, num_tokens)

    def _submit_piece(
        self,
        session: Session[PreparedText, Vector],
        model: EmbeddingModel,
        options: EmbedOptions,
        deadline: Deadline,
        later_tokens: int,
        after_s: float,
        on_event: Callable[[object], None],
        piece: Piece,
    ) -> Answers:
        with self._counting_rejections():
            requests = [
                replace(request, on_event=on_event) if request.is_tiled else request
                for request in self._requests(model, piece, options, deadline, after_s)
            ]
        return session.submit(requests, deadline.left_s, later_tokens=later_tokens)


def _report_at_once(
    embedded: DocumentEmbedding, num_tokens: int, on_event: OnDocumentEvent
) -> None:
    """A document that is read in one go has no events on the way."""
    if embedded.chunks:
        on_event(ChunksReady(chunks=embedded.chunks))
    on_event(Progress(tokens_done=num_tokens, tokens_total=num_tokens, seconds_left=0.0))


async def _two_at_a_time(
    pieces: Iterable[Piece], submit: Callable[[Piece], Answers]
) -> AsyncGenerator[tuple[Piece, list[TimedResult[Vector]]], None]:
    """Each piece with its results, in order. Two pieces at most are submitted and not received."""
    submitted: deque[tuple[Piece, Answers]] = deque()
    try:
        for piece in pieces:
            if len(submitted) == 2:
                yield await _received(submitted)
            await asyncio.sleep(0)  # making a piece of hundreds takes as long as queueing it
            submitted.append((piece, submit(piece)))
        while submitted:
            yield await _received(submitted)
    finally:
        for _, answers in submitted:
            for answer in answers:
                answer.cancel()


async def _received(
    submitted: deque[tuple[Piece, Answers]],
) -> tuple[Piece, list[TimedResult[Vector]]]:
    piece, answers = submitted[0]
    results = await asyncio.gather(*answers)
    submitted.popleft()
    return piece, results


def _as_list(steps: Steps[T]) -> Steps[list[T]]:
    return [(yield from steps)]
