"""The chunks of a document without the document's own vector."""

from __future__ import annotations

from engine.calls.chunk_runs import ChunkRuns
from engine.calls.core import DEFAULTS
from engine.calls.document_calls import DocumentRun, OnDocumentEvent
from engine.execution.document_stream import DocumentStream
from engine.scheduling.deadline import Deadline
from engine.types import Chunking, DocumentChunks, EmbedOptions


class ChunkCalls(ChunkRuns):
    async def embed_chunks(
        self,
        text: str,
        *,
        model: str | None = None,
        chunks: Chunking,
        title: str | None = None,
        options: EmbedOptions = DEFAULTS,
        timeout_s: float | None = None,
        on_event: OnDocumentEvent | None = None,
    ) -> DocumentChunks:
        """The chunks of `embed_document`, the same to the bit. Where they take nothing from the
        document (context "linked", "opening" or "alone"), it is not read as a whole, which saves
        half; `on_event` then gets the chunks at the end."""
        deadline = Deadline(timeout_s)
        chosen, document = await self._read_text(text, model, options, chunks, title, deadline)
        with self._worker.session() as session:
            return await self._run_chunks(
                DocumentRun(session, chosen, document, options, deadline, on_event)
            )

    def open_chunks(
        self,
        *,
        model: str | None = None,
        chunks: Chunking,
        title: str | None = None,
        options: EmbedOptions = DEFAULTS,
        timeout_s: float | None = None,
        on_event: OnDocumentEvent | None = None,
    ) -> DocumentStream[DocumentChunks]:
        """The same for a document that arrives in pieces."""
        return self._open_stream(
            self._run_chunks, model, chunks, title, options, timeout_s, on_event
        )
