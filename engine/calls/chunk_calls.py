"""The chunks of a document without the document's own vector."""

from __future__ import annotations

from engine.calls.core import DEFAULTS
from engine.calls.document_calls import DocumentCalls
from engine.execution.inputs import PreparedText, lengths_alone
from engine.execution.results import chunks_read_alone
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.deadline import Deadline
from engine.types import Chunking, DocumentChunks, EmbedOptions


class ChunkCalls(DocumentCalls):
    async def embed_chunks(
        self,
        text: str,
        *,
        model: str | None = None,
        chunks: Chunking,
        title: str | None = None,
        options: EmbedOptions = DEFAULTS,
        timeout_s: float | None = None,
    ) -> DocumentChunks:
        """The chunks of `embed_document`, the same to the bit. Where they take nothing from the
        document (context "alone" or "opening"), it is not read as a whole, which saves half."""
        deadline = Deadline(timeout_s)
        chosen, document = await self._read_text(text, model, options, chunks, title, deadline)
        if document.has_only_passages_alone:
            return await self._run_passages(chosen, document, options, deadline)
        with self._worker.session() as session:
            found = await self._run_document(
                session, chosen, document, options, deadline, on_event=None
            )
        return DocumentChunks(chunks=found.chunks, accounting=found.accounting)

    async def _run_passages(
        self,
        model: EmbeddingModel,
        document: PreparedText,
        options: EmbedOptions,
        deadline: Deadline,
    ) -> DocumentChunks:
        with self._counting_rejections():
            lengths = list(lengths_alone(document, model.tokenizer))
            largest = self._planner.plan(model, max(lengths))
            self._planner.admit(
                self._planner.with_alone(model, largest, count=len(lengths), tokens=sum(lengths)),
                deadline,
            )
        with self._worker.session() as session:
            self._count_truncated(model, [document])
            alone = await self._read_alone(
                session, model, document, options, deadline, progress=None, later_tokens=0
            )
        return chunks_read_alone(document, options, alone)
