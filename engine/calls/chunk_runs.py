"""A document's chunks on the device, without its own vector."""

from __future__ import annotations

from functools import partial

from engine.calls.document_calls import DocumentCalls, DocumentRun
from engine.execution.inputs import PreparedText, lengths_alone
from engine.execution.results import WholeProgress, chunks_read_alone
from engine.model.embedding_model import EmbeddingModel
from engine.platform.turns import beside_others_if_many
from engine.types import ChunksReady, DocumentChunks, Plan


class ChunkRuns(DocumentCalls):
    """Reads a document as a whole only if its chunks take something from that."""

    async def _run_chunks(self, run: DocumentRun) -> DocumentChunks:
        if run.document.has_only_passages_alone:
            return await self._run_passages(run)
        found = await self._run_document(run)
        return DocumentChunks(chunks=found.chunks, accounting=found.accounting)

    async def _run_passages(self, run: DocumentRun) -> DocumentChunks:
        session, model, document, options, deadline, on_event, after_s = run
        with self._counting_rejections():
            plan = self._chunks_plan(model, document)
            self._planner.admit(plan, deadline)
        self._count_truncated(model, [document])
        progress = None if on_event is None else WholeProgress(plan, on_event)
        alone = await self._read_alone(
            *(session, model, document, options, deadline, progress),
            later_tokens=0,
            after_s=after_s,
        )
        found = await beside_others_if_many(
            partial(chunks_read_alone, document, options, alone), len(document.chunks)
        )
        if on_event is not None:
            on_event(ChunksReady(chunks=found.chunks))
        return found

    def _chunks_plan(self, model: EmbeddingModel, document: PreparedText) -> Plan:
        """The plan of a document whose own vector is not asked for."""
        if not document.has_only_passages_alone:
            return self._document_plan(model, document)
        lengths = lengths_alone(document, model.tokenizer)
        return self._planner.of_passages(
            model,
            document.num_embedded,
            count=len(lengths),
            alone=sum(lengths),
            longest=max(lengths),
            linked=document.linked is not None,
        )
