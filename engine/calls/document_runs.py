"""Several documents of one call on the device, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from engine.calls.chunk_runs import ChunkRuns
from engine.calls.document_calls import DocumentRun
from engine.execution.inputs import PreparedText
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.deadline import Deadline
from engine.scheduling.session import Session
from engine.types import DocumentChunks, EmbedOptions, Vector

T = TypeVar("T")


class DocumentRuns(ChunkRuns):
    """Runs the documents of a call within its session: once it has begun, none is refused because
    the queue is full or the engine drains."""

    async def _run_documents(
        self,
        session: Session[PreparedText, Vector],
        model: EmbeddingModel,
        documents: Sequence[PreparedText],
        options: EmbedOptions,
        deadline: Deadline,
        take: Callable[[DocumentChunks], T],
    ) -> list[T]:
        """What `take` makes of each document's chunks as soon as they are read. The first failure
        ends all."""

        async def run(document: PreparedText) -> T:
            return take(
                await self._run_chunks(DocumentRun(session, model, document, options, deadline))
            )

        tasks: list[asyncio.Task[T]] = []
        running: dict[asyncio.Task[T], int] = {}
        try:
            for document in documents:
                while running and not self._may_join(running.values(), document, model):
                    done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        del running[task]
                        task.result()  # a failure ends the call
                tasks.append(asyncio.create_task(run(document)))
                running[tasks[-1]] = document.num_embedded
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _may_join(
        self, running: Collection[int], document: PreparedText, model: EmbeddingModel
    ) -> bool:
        """Whether a document may run beside others of its call: they fill no more than a batch, and
        leave the queue to other callers. Alone it may always run."""
        batch = self.config.batch_tokens_on(model.encoder.device.type)
        num_tokens = document.num_embedded
        return sum(running) + num_tokens <= batch and self._worker.has_room(num_tokens)
