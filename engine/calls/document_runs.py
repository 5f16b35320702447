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
from engine.types import DocumentChunks, EmbedOptions, Plan, Vector

T = TypeVar("T")


class DocumentRuns(ChunkRuns):
    """Runs the documents of a call within its session: once it has begun, none is refused because
    the queue is full or the engine drains."""

    def _admit_documents(
        self, model: EmbeddingModel, documents: Sequence[PreparedText], deadline: Deadline
    ) -> None:
        """Refuses the call before any document runs, and once: each would count its own refusal."""
        with self._counting_rejections():
            for document in documents:
                self._planner.admit(self._chunks_plan(model, document), deadline)

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

        async def run(document: PreparedText, after_s: float) -> T:
            one = DocumentRun(session, model, document, options, deadline, after_s=after_s)
            return take(await self._run_chunks(one))

        tasks: list[asyncio.Task[T]] = []
        running: dict[asyncio.Task[T], Plan] = {}
        try:
            for document in documents:
                plan = self._chunks_plan(model, document)
                while running and not self._may_join(running.values(), plan, model):
                    done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        del running[task]
                        task.result()  # a failure ends the call
                after_s = sum(one.seconds for one in running.values())
                tasks.append(asyncio.create_task(run(document, after_s)))
                running[tasks[-1]] = plan
                await asyncio.sleep(0)  # a refusal comes at once, and ends the call
                if tasks[-1].done():
                    tasks[-1].result()
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _may_join(self, running: Collection[Plan], plan: Plan, model: EmbeddingModel) -> bool:
        """Whether a document may run beside others of its call: they fill no more than a batch, and
        leave the queue to other callers. Alone it may always run."""
        batch = self.config.batch_tokens_on(model.encoder.device.type)
        num_tokens = sum(one.tokens for one in running) + plan.tokens
        return num_tokens <= batch and self._worker.has_room(plan.tokens)
