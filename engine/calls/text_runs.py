"""Texts on the device: queued as they are read, awaited, measured."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import accumulate

from engine.calls.core import EngineCore
from engine.errors import DeadlineExceeded
from engine.execution.inputs import PreparedText
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.deadline import Deadline
from engine.scheduling.request import Request, TimedResult
from engine.scheduling.session import Session
from engine.types import (
    EmbedOptions,
    Vector,
)


class TextRuns(EngineCore):
    """Runs the texts of a call on the device, for the calls that embed them."""

    async def _run_texts(
        self,
        session: Session[PreparedText, Vector],
        model: EmbeddingModel,
        pieces: AsyncIterator[list[PreparedText]],
        options: EmbedOptions,
        deadline: Deadline,
        *,
        wait_for_room: bool = False,
    ) -> tuple[list[PreparedText], list[TimedResult[Vector]]]:
        """Queue texts as they are read, and wait for their results. If one fails or the caller
        leaves, the others are cancelled too: nobody would see their results."""
        texts: list[PreparedText] = []
        futures: list[asyncio.Future[TimedResult[Vector]]] = []
        after_s = 0.0
        try:
            async with asyncio.timeout(deadline.left_s):
                async for piece in pieces:
                    if futures:  # queueing thousands would hold up the event loop
                        await asyncio.sleep(0)
                    texts += piece
                    with self._counting_rejections():
                        requests = self._requests(model, piece, options, deadline, after_s)
                    after_s += sum(request.seconds for request in requests)
                    num_tokens = sum(request.tokens for request in requests)
                    if wait_for_room and not futures:
                        await self._worker.wait_for_room(num_tokens)
                    await self._wait_for_own(futures, num_tokens)
                    with deadline.as_a_whole():
                        futures += session.submit(requests, deadline.left_s)
                    self._count_truncated(model, piece)
            with deadline.as_a_whole():
                results = await asyncio.gather(*futures)
            self._record(model, texts, results)
            return texts, results
        except TimeoutError:  # before all of it was queued
            self._observer.rejected(reason=DeadlineExceeded.code)
            raise deadline.exceeded from None
        finally:
            for future in futures:
                future.cancel()

    async def _wait_for_own(
        self, futures: Sequence[asyncio.Future[TimedResult[Vector]]], num_tokens: int
    ) -> None:
        """Wait until there is room, or until the call's earlier texts are done: a call that was
        admitted fills the queue no further than its own texts have left it."""
        for future in futures:
            if self._worker.has_room(num_tokens):
                return
            await asyncio.wait([future])

    def _requests(
        self,
        model: EmbeddingModel,
        texts: Sequence[PreparedText],
        options: EmbedOptions,
        deadline: Deadline,
        after_s: float = 0.0,
    ) -> list[Request[PreparedText]]:
        """Plan texts of one call, whose earlier texts take `after_s`."""
        requests = [self._request(model, text, options, deadline) for text in texts]
        before_s = accumulate((request.seconds for request in requests), initial=after_s)
        return [
            replace(request, after_s=seconds)
            for request, seconds in zip(requests, before_s, strict=False)
        ]

    def _request(
        self,
        model: EmbeddingModel,
        text: PreparedText,
        options: EmbedOptions,
        deadline: Deadline,
    ) -> Request[PreparedText]:
        """Plan the text. Raises if it does not fit in memory or would miss its deadline."""
        plan = self._planner.plan(model, text.num_embedded, tiled=text.is_tiled)
        self._planner.admit(plan, deadline)
        return Request(
            model=model.name,
            payload=text,
            tokens=plan.tokens,
            kind="sweep_tile" if plan.path == "swept" else "batch",
            num_bytes=self._planner.bytes_to_hold(model, plan),
            seconds=plan.seconds,
            priority=options.priority,
            needs_ranks=plan.ranks > 1,
        )

    def _record(
        self,
        model: EmbeddingModel,
        texts: Sequence[PreparedText],
        results: Sequence[TimedResult[Vector]],
    ) -> None:
        """Measure texts that came back from the device."""
        for text, result in zip(texts, results, strict=True):
            # Batches are measured when they run.
            if self._planner.is_tiled(model, text.num_embedded):
                self._planner.record_tiled(
                    model, text.num_embedded, result.compute_s, ranks=result.ranks
                )
        self._observer.served(results)
        self._on_embedded(model, texts)

    def _on_embedded(self, model: EmbeddingModel, texts: Sequence[PreparedText]) -> None:
        """Called with the texts of a call that came back from the device."""

    def _count_truncated(self, model: EmbeddingModel, texts: Sequence[PreparedText]) -> None:
        for text in texts:
            if text.was_truncated:
                self._observer.truncated(model=model.name)
