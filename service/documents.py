"""Embeds one document and reports its events, identically over HTTP and gRPC.

`accepted` comes while the text is read, then `progress` and `chunks` while it is computed, and
`result` at the end. The names are those of the fields of lln.v1.DocumentEvent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from engine.async_engine import AsyncEngine
from engine.errors import EngineUnavailable, InvalidInput
from engine.execution.document_stream import DocumentStream
from engine.execution.input_checks import check_vector_or_chunks
from engine.living_types import LivingEmbedding, RecordPrecision
from engine.types import Chunking, ChunksReady, DocumentChunks, EmbedOptions, Progress
from service.fairness import cooperatively, read_by_then, write_timeout_at

_ACCEPTED_EVERY_TOKENS = 16_384

_NUMBERS_AT_ONCE = 131_072
"""Numbers of the vectors of chunks in one event. Half a megabyte over gRPC, whose clients take four
by default; and a few milliseconds of JSON, in which the event loop does nothing else."""


@dataclass(frozen=True, kw_only=True)
class DocumentRequest:
    """How to embed a document. Its text comes separately, in pieces."""

    model: str
    options: EmbedOptions
    chunking: Chunking | None
    title: str | None
    timeout_s: float
    vector: bool = True  # of the document itself


@dataclass(frozen=True, kw_only=True)
class LivingRequest(DocumentRequest):
    """A document with a record. Without one to go on from, it is read whole."""

    text: str
    record: bytes | None = None
    precision: RecordPrecision = "float32"
    fold: bool = False
    max_staleness: float | None = None
    exact: bool = False


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """The number of tokens read so far."""

    model: str
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The result."""

    model: str
    embedding: DocumentChunks  # a DocumentEmbedding if its own vector was asked for


Pieces: TypeAlias = AsyncIterable[bytes | str]
Event: TypeAlias = Accepted | Progress | ChunksReady | Finished
EventName: TypeAlias = Literal["accepted", "progress", "chunks", "result"]
Embedded = TypeVar("Embedded", bound=DocumentChunks)
OnEvent: TypeAlias = Callable[[Event], None]
RunReader: TypeAlias = Callable[[Coroutine[Any, Any, None]], Awaitable[bool]]
"""Runs the coroutine that reads the pieces. Returns False if it cancelled it."""

EVENT_NAMES: dict[type[Event], EventName] = {
    Accepted: "accepted",
    Progress: "progress",
    ChunksReady: "chunks",
    Finished: "result",
}


async def _run_to_end(reader: Coroutine[Any, Any, None]) -> bool:
    await reader
    return True


async def embed_document(
    engine: AsyncEngine,
    request: DocumentRequest,
    pieces: Pieces,
    *,
    on_event: OnEvent | None = None,
    run_reader: RunReader = _run_to_end,
) -> DocumentChunks:
    """Embeds a document while its pieces arrive. Without `on_event`, no events are made.

    Raises EngineUnavailable if `run_reader` stopped reading because the server shuts down.
    """
    document = _open(engine, request, on_event)
    try:
        if not await run_reader(_read(document, request, pieces, on_event)):
            raise EngineUnavailable("the server is stopping and did not read the whole document")
        await document.end()
        if on_event is not None:
            on_event(Accepted(model=request.model, tokens=document.tokens))
        return await document.finish()
    finally:
        document.abort()


def _open(
    engine: AsyncEngine, request: DocumentRequest, on_event: OnEvent | None
) -> DocumentStream[DocumentChunks]:
    shared: dict[str, Any] = {
        "model": request.model,
        "title": request.title,
        "options": request.options,
        "timeout_s": request.timeout_s,
        "on_event": on_event,
    }
    if request.vector:
        return engine.open_document(chunks=request.chunking, **shared)
    check_vector_or_chunks(request.vector, request.chunking, "chunking")
    assert request.chunking is not None, "checked"
    return engine.open_chunks(chunks=request.chunking, **shared)


async def stream_document(
    engine: AsyncEngine,
    request: DocumentRequest,
    pieces: Pieces,
    send: Callable[[Event], Awaitable[None]],
    *,
    result_model: str,
    run_reader: RunReader = _run_to_end,
) -> DocumentChunks:
    """Embeds a document and sends its events meanwhile, the result last.

    The work is cancelled if sending fails or the caller is cancelled. Raises AnswerNotTaken if the
    client does not read the events within the request's timeout; once the work is done it has the
    same time again for the remaining events.
    """

    async def work(on_event: OnEvent) -> DocumentChunks:
        return await embed_document(
            engine, request, pieces, on_event=on_event, run_reader=run_reader
        )

    return await stream_events(work, send, timeout_s=request.timeout_s, result_model=result_model)


async def stream_events(
    run: Callable[[OnEvent], Coroutine[Any, Any, Embedded]],
    send: Callable[[Event], Awaitable[None]],
    *,
    timeout_s: float,
    result_model: str,
) -> Embedded:
    """Sends the events of a document's work as they come, the result last: see
    `stream_document`."""
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[Event | None] = asyncio.Queue()
    send_deadline = loop.time() + timeout_s
    work = asyncio.create_task(run(events.put_nowait))

    def end(ended: asyncio.Task[Embedded]) -> None:
        nonlocal send_deadline
        send_deadline = loop.time() + timeout_s
        if not ended.cancelled():
            ended.exception()  # marks it as retrieved: a failure to send never awaits the work
        events.put_nowait(None)

    work.add_done_callback(end)
    try:
        while (event := await events.get()) is not None:
            async for part in cooperatively(_parts_of(event)):
                async with write_timeout_at(send_deadline, timeout_s):
                    await send(part)
        found = await work
        async with write_timeout_at(send_deadline, timeout_s):
            await send(Finished(model=result_model, embedding=found))
        return found
    finally:
        work.cancel()


def _parts_of(event: Event) -> Iterator[Event]:
    """The event, or several of fewer chunks: those of a whole document may come at once."""
    if not isinstance(event, ChunksReady) or not event.chunks:
        yield event
        return
    at_once = max(1, _NUMBERS_AT_ONCE // len(event.chunks[0].vector))
    for start in range(0, len(event.chunks), at_once):
        yield ChunksReady(chunks=event.chunks[start : start + at_once])


async def _read(
    document: DocumentStream[DocumentChunks],
    request: DocumentRequest,
    pieces: Pieces,
    on_event: OnEvent | None,
) -> None:
    reported = 0
    async with read_by_then(request.timeout_s):
        async for piece in pieces:
            await document.feed(piece)
            if on_event is not None and document.tokens >= reported + _ACCEPTED_EVERY_TOKENS:
                reported = document.tokens
                on_event(Accepted(model=request.model, tokens=reported))


async def embed_living(
    engine: AsyncEngine, request: LivingRequest, on_event: OnEvent | None = None
) -> LivingEmbedding:
    """Embeds a document with its record, as a whole or as an update of the record that was sent."""
    _check_keeps_vector(request)
    shared: dict[str, Any] = {
        "model": request.model,
        "chunks": request.chunking,
        "title": request.title,
        "options": request.options,
        "timeout_s": request.timeout_s,
        "on_event": on_event,
    }
    if request.record is None:
        _check_reads_whole(request)
        found = await engine.embed_living_document(
            request.text, precision=request.precision, fold=request.fold, **shared
        )
    else:
        found = await engine.update_document(
            request.record,
            request.text,
            max_staleness=request.max_staleness,
            exact=request.exact,
            **shared,
        )
    # All at the end: a kept one may become stale by what is read last.
    if on_event is not None and found.chunks:
        on_event(ChunksReady(chunks=found.chunks))
    return found


def _check_keeps_vector(request: DocumentRequest) -> None:
    if not request.vector:
        raise InvalidInput(
            "vector is false, but a document with a record always has its vector: the record keeps "
            "what it is made of; leave out vector, or the record",
            code="vector_of_record",
            param="vector",
            actual=False,
        )


def _check_reads_whole(request: LivingRequest) -> None:
    """A document without a record has nothing that could be stale."""
    for name, given in (
        ("max_staleness", request.max_staleness is not None),
        ("exact", request.exact),
    ):
        if given:
            raise InvalidInput(
                f"{name} only applies to an update, and no record was sent",
                code="no_record",
                param=name,
            )
