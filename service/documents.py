"""A document on its way through the service: the same events in the same order over HTTP and gRPC.

`accepted` comes once tokens have been read, and again as more are; then `progress` and `chunks` as
the work goes on; `result` is the last. The names are those of the fields of lln.v1.DocumentEvent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from engine.documents import DocumentStream
from engine.engine import AsyncEngine
from engine.errors import DeadlineExceeded, EngineUnavailable
from engine.types import Chunking, ChunksReady, DocumentEmbedding, EmbedOptions, Progress
from service.slow_callers import takes_by


@dataclass(frozen=True, kw_only=True)
class DocumentRequest:
    """How a document is to be embedded, whichever way it comes."""

    model: str
    options: EmbedOptions
    chunking: Chunking | None
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """So many tokens have been read."""

    model: str
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Finished:
    model: str
    embedding: DocumentEmbedding


Pieces: TypeAlias = AsyncIterable[bytes | str]
Event: TypeAlias = Accepted | Progress | ChunksReady | Finished
EventName: TypeAlias = Literal["accepted", "progress", "chunks", "result"]
Tell: TypeAlias = Callable[[Event], None]
Listen: TypeAlias = Callable[[Coroutine[Any, Any, None]], Awaitable[bool]]

_TELL_TOKENS = 16_384  # between one "accepted" and the next

EVENT_NAMES: dict[type[Event], EventName] = {
    Accepted: "accepted",
    Progress: "progress",
    ChunksReady: "chunks",
    Finished: "result",
}


async def embed_pieces(
    engine: AsyncEngine,
    request: DocumentRequest,
    pieces: Pieces,
    *,
    tell: Tell = lambda _: None,
    listen: Listen | None = None,
) -> DocumentEmbedding:
    """Embeds a document that is still being sent. `listen` runs the reading, and may end it."""
    document = engine.open_document(
        model=request.model,
        chunks=request.chunking,
        options=request.options,
        timeout_s=request.timeout_s,
        on_event=tell,
    )
    try:
        reading = _read(document, request, pieces, tell)
        if not await (_to_its_end if listen is None else listen)(reading):
            raise EngineUnavailable("the server is stopping, and had not read all of the document")
        await document.end()
        tell(Accepted(model=request.model, tokens=document.tokens))
        return await document.finish()
    finally:
        document.abort()


async def stream_events(
    embed: Callable[[Tell], Coroutine[Any, Any, DocumentEmbedding]],
    model: str,
    send: Callable[[Event], Awaitable[None]],
    *,
    timeout_s: float,
) -> DocumentEmbedding:
    """Sends the events of a document while it is embedded, and its result after them. If sending
    fails, or the caller is cancelled, so is the work.

    Events must be taken within `timeout_s`, and those that are left when the work is done
    in as much time again: else AnswerNotTaken is raised.
    """
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[Event | None] = asyncio.Queue()
    give_up_at = loop.time() + timeout_s
    work = asyncio.create_task(embed(events.put_nowait))

    def end(ended: asyncio.Task[DocumentEmbedding]) -> None:
        nonlocal give_up_at
        give_up_at = loop.time() + timeout_s
        if not ended.cancelled():
            ended.exception()  # read here too: who fails to send does not come to it below
        events.put_nowait(None)

    work.add_done_callback(end)
    try:
        while (event := await events.get()) is not None:
            async with takes_by(give_up_at, timeout_s):
                await send(event)
        found = await work
        async with takes_by(give_up_at, timeout_s):
            await send(Finished(model=model, embedding=found))
        return found
    finally:
        work.cancel()


async def _read(
    document: DocumentStream,
    request: DocumentRequest,
    pieces: Pieces,
    tell: Tell,
) -> None:
    told = 0
    try:
        async with asyncio.timeout(request.timeout_s):
            async for piece in pieces:
                await document.feed(piece)
                if document.tokens >= told + _TELL_TOKENS:
                    told = document.tokens
                    tell(Accepted(model=request.model, tokens=told))
    except TimeoutError:
        raise DeadlineExceeded(
            f"The deadline of {request.timeout_s:g} s passed before the document was read.",
            limit=request.timeout_s,
        ) from None


async def _to_its_end(reading: Coroutine[Any, Any, None]) -> bool:
    await reading
    return True
