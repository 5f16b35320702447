"""Texts and documents as vectors: queued, admitted, answered with their accounts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TypeAlias

from engine.answers import (
    NOTHING_ALONE,
    ChunkVectors,
    ReadAlone,
    document_embedding,
    embedding,
    token_states,
    tokenization,
)
from engine.config import EngineConfig
from engine.core import DEFAULT_CONFIG, DEFAULTS, EngineCore
from engine.deadline import Deadline
from engine.documents import DocumentStream
from engine.drift import DriftReader
from engine.errors import DeadlineExceeded, InvalidInput
from engine.model.embedding_model import EmbeddingModel
from engine.observer import EngineObserver, Served
from engine.orders import Delivered, Order
from engine.prepare import (
    Prepared,
    check_alone,
    check_input,
    check_inputs,
    check_options,
    check_pools,
    check_token_states,
    passages_alone,
    prepare,
    prompt_of,
    token_by_token,
)
from engine.reader import DocumentReader, prepare_document
from engine.sweep import SweepEvent
from engine.types import (
    Chunking,
    ChunksReady,
    DocumentEmbedding,
    DocumentEvent,
    Embedding,
    EmbedOptions,
    Plan,
    Progress,
    TextInput,
    Tokenization,
    Vector,
)

PIECE_TEXTS = 64
"""Texts tokenised together: few enough that the device starts while the next ones are read."""

OnDocumentEvent: TypeAlias = Callable[[DocumentEvent], None]


class TextCalls(EngineCore):
    """What the engine does with texts."""

    def __init__(
        self,
        models: Sequence[EmbeddingModel],
        *,
        config: EngineConfig = DEFAULT_CONFIG,
        observer: EngineObserver | None = None,
    ) -> None:
        super().__init__(models, config=config, observer=observer)
        self._drift = DriftReader(config, self._in_turns, self._observer)

    async def embed(
        self,
        inputs: Sequence[TextInput],
        *,
        model: str | None = None,
        options: EmbedOptions = DEFAULTS,
        timeout_s: float | None = None,
        patient: bool = False,
    ) -> list[Embedding]:
        """One vector for each text or list of token ids, in their order. Who is `patient` waits
        for room in the queue, where others are refused."""
        deadline = Deadline(timeout_s)
        chosen = self._checked(inputs, model, options)
        pieces = self._prepared_pieces(inputs, chosen, options)
        texts, delivered = await self._run_texts(chosen, pieces, options, deadline, patient=patient)
        return [
            embedding(text, result, chosen, options)
            for text, result in zip(texts, delivered, strict=True)
        ]

    async def embed_tokens(
        self,
        inputs: Sequence[TextInput],
        *,
        model: str | None = None,
        options: EmbedOptions = DEFAULTS,
        timeout_s: float | None = None,
        patient: bool = False,
    ) -> list[Embedding]:
        """The state of every token of each text, special ones included: [tokens, dim] each."""
        deadline = Deadline(timeout_s)
        chosen = self._checked(inputs, model, options)
        pieces = self._token_by_token(self._prepared_pieces(inputs, chosen, options))
        texts, delivered = await self._run_texts(chosen, pieces, options, deadline, patient=patient)
        return [
            token_states(text, result, options)
            for text, result in zip(texts, delivered, strict=True)
        ]

    async def embed_document(
        self,
        text: str,
        *,
        model: str | None = None,
        chunks: Chunking | None = None,
        options: EmbedOptions = DEFAULTS,
        timeout_s: float | None = None,
        on_event: OnDocumentEvent | None = None,
    ) -> DocumentEmbedding:
        """One vector for the whole document, and one for each of its late chunks. `on_event` is
        called on the event loop with what there is to tell on the way."""
        deadline = Deadline(timeout_s)
        with self._counting_rejections():
            chosen = self._document_model(model, options)
        (prepared,) = await self._read(
            lambda: [prepare_document(text, chosen, options, chunks)], deadline
        )
        return await self._run_document(chosen, prepared, options, deadline, on_event)

    def open_document(
        self,
        *,
        model: str | None = None,
        chunks: Chunking | None = None,
        options: EmbedOptions = DEFAULTS,
        timeout_s: float | None = None,
        on_event: OnDocumentEvent | None = None,
    ) -> DocumentStream:
        """The same for a document that comes in pieces."""
        with self._counting_rejections():
            chosen = self._document_model(model, options)
            reader = DocumentReader(chosen, options, chunks, in_pieces=True)

        async def run(prepared: Prepared, deadline: Deadline) -> DocumentEmbedding:
            return await self._run_document(chosen, prepared, options, deadline, on_event)

        return DocumentStream(reader, run, Deadline(timeout_s), self._counting_rejections)

    async def plan(
        self,
        tokens: int | None = None,
        *,
        text: str | None = None,
        model: str | None = None,
        timeout_s: float | None = None,
    ) -> Plan:
        """What a text of so many tokens, or this text, would take, and which way it would run."""
        with self._counting_rejections():
            chosen = self._model(model)
            if (tokens is None) == (text is None):
                raise InvalidInput(
                    "a plan is made for a number of tokens or for a text, one of the two",
                    param="tokens",
                )
            if text is not None:
                check_input(text, "text")
                whole = prompt_of(DEFAULTS, chosen) + text
                async with Deadline(timeout_s).over():
                    encoded = await asyncio.to_thread(chosen.tokenizer.encode_batch, [whole])
                tokens = encoded[0].num_tokens
            assert tokens is not None, "one of the two was given"
            return self._planner.plan(chosen, tokens)

    async def tokenize(
        self, text: str, *, model: str | None = None, timeout_s: float | None = None
    ) -> Tokenization:
        """The text's tokens and the characters each stands for."""
        with self._counting_rejections():
            chosen = self._model(model)
            check_input(text, "text")
            async with Deadline(timeout_s).over():
                return await asyncio.to_thread(tokenization, text, chosen)

    def _checked(
        self, inputs: Sequence[TextInput], model: str | None, options: EmbedOptions
    ) -> EmbeddingModel:
        """The model that will read these inputs, if they can be asked for so."""
        with self._counting_rejections():
            chosen = self._model(model)
            check_inputs(inputs, self.config)
            check_options(options, chosen)
        return chosen

    async def _prepared_pieces(
        self, inputs: Sequence[TextInput], model: EmbeddingModel, options: EmbedOptions
    ) -> AsyncIterator[list[Prepared]]:
        """Inputs a piece at a time, so that the device starts while later ones are tokenised."""
        for start in range(0, len(inputs), PIECE_TEXTS):
            piece = inputs[start : start + PIECE_TEXTS]
            yield await self._read(partial(prepare, piece, model, options, first_index=start))

    def _document_model(self, name: str | None, options: EmbedOptions) -> EmbeddingModel:
        chosen = self._model(name)
        check_options(options, chosen)
        check_pools(chosen)
        return chosen

    async def _run_document(
        self,
        model: EmbeddingModel,
        document: Prepared,
        options: EmbedOptions,
        deadline: Deadline,
        on_event: OnDocumentEvent | None,
    ) -> DocumentEmbedding:
        with self._counting_rejections():
            check_alone(document, self.config)
            order = self._order(model, document, options, deadline.left_s)
        with self._thread.going_on():
            alone = await self._read_alone(model, document, options, deadline)
            if on_event is not None:
                chunks = ChunkVectors(document, options, alone)
                order = replace(order, on_event=partial(_tell, chunks, on_event))
            with deadline.as_a_whole():
                (future,) = self._thread.submit_all(
                    model.name, [order], deadline.left_s, follows=bool(alone.vectors)
                )
        self._count_truncated(model, [document])
        try:
            with deadline.as_a_whole():
                result = await future
        finally:
            future.cancel()
        self._done_with(model, [document], [result])
        embedded = document_embedding(document, result, options, alone)
        if on_event is not None and not order.sweep:
            _tell_at_once(embedded, document.num_embedded, on_event)
        return embedded

    async def _read_alone(
        self,
        model: EmbeddingModel,
        document: Prepared,
        options: EmbedOptions,
        deadline: Deadline,
    ) -> ReadAlone:
        """The document's passages as texts of their own, if it asks for them: before it, since its
        chunks are told as soon as they are final."""
        if not document.alone:
            return NOTHING_ALONE

        async def pieces() -> AsyncIterator[list[Prepared]]:
            passages = passages_alone(document, model.tokenizer)
            while piece := list(islice(passages, PIECE_TEXTS)):
                yield piece

        _, found = await self._run_texts(model, pieces(), options, deadline, patient=False)
        return ReadAlone.of(found)

    async def _token_by_token(
        self, pieces: AsyncIterator[list[Prepared]]
    ) -> AsyncIterator[list[Prepared]]:
        """Pieces that ask for each token's state, as long as the answer stays within its limit."""
        num_tokens = 0
        async for piece in pieces:
            num_tokens += sum(text.num_embedded for text in piece)
            with self._counting_rejections():
                check_token_states(num_tokens, self.config)
            yield [token_by_token(text) for text in piece]

    async def _run_texts(
        self,
        model: EmbeddingModel,
        pieces: AsyncIterator[list[Prepared]],
        options: EmbedOptions,
        deadline: Deadline,
        *,
        patient: bool,
    ) -> tuple[list[Prepared], list[Delivered[Vector]]]:
        """Queue texts as they are read. If one fails or the caller leaves, the others are given
        up too: nobody would see them."""
        texts: list[Prepared] = []
        futures: list[asyncio.Future[Delivered[Vector]]] = []
        try:
            with self._thread.going_on():
                async with asyncio.timeout(deadline.left_s):
                    async for piece in pieces:
                        texts += piece
                        futures += await self._queue_piece(
                            model, piece, futures, options, deadline, patient=patient
                        )
                        self._count_truncated(model, piece)
            with deadline.as_a_whole():
                delivered = await asyncio.gather(*futures)
            self._done_with(model, texts, delivered)
            return texts, delivered
        except TimeoutError:  # before all of it was queued
            self._observer.rejected(reason=DeadlineExceeded.code)
            raise deadline.exceeded from None
        finally:
            for future in futures:
                future.cancel()

    async def _queue_piece(
        self,
        model: EmbeddingModel,
        piece: Sequence[Prepared],
        own: Sequence[asyncio.Future[Delivered[Vector]]],
        options: EmbedOptions,
        deadline: Deadline,
        *,
        patient: bool,
    ) -> list[asyncio.Future[Delivered[Vector]]]:
        """The next texts of a call, behind its `own` in the queue, when there is room."""
        with self._counting_rejections():
            orders = [self._order(model, text, options, deadline.left_s) for text in piece]
        await self._wait_for_room(orders, own, patient=patient)
        with deadline.as_a_whole():
            return self._thread.submit_all(model.name, orders, deadline.left_s, follows=bool(own))

    async def _wait_for_room(
        self,
        orders: Sequence[Order[Prepared]],
        own: Sequence[asyncio.Future[Delivered[Vector]]],
        *,
        patient: bool,
    ) -> None:
        """A call that was let in fills the queue no further than its own texts have left it."""
        num_tokens = sum(order.tokens for order in orders)
        if patient and not own:
            await self._thread.wait_for_room(num_tokens)
        for future in own:
            if self._thread.has_room(num_tokens):
                return
            await asyncio.wait([future])

    def _order(
        self,
        model: EmbeddingModel,
        text: Prepared,
        options: EmbedOptions,
        timeout_s: float | None,
    ) -> Order[Prepared]:
        """The text as the device thread takes it, if it is let in."""
        plan = self._planner.plan(model, text.num_embedded)
        self._planner.admit(plan, timeout_s)
        return Order(
            payload=text,
            tokens=plan.tokens,
            sweep=plan.path == "swept",
            num_bytes=plan.bytes,
            seconds=plan.seconds,
            priority=options.priority,
        )

    def _done_with(
        self,
        model: EmbeddingModel,
        texts: Sequence[Prepared],
        delivered: Sequence[Delivered[Vector]],
    ) -> None:
        """The books of texts that came back from the device."""
        for text, result in zip(texts, delivered, strict=True):
            # What batches take is noted when they run.
            if self._planner.is_swept(model, text.num_embedded):
                self._planner.ran_sweep(model, text.num_embedded, result.compute_s)
        self._observer.served(
            [
                Served(
                    text.num_embedded,
                    result.queue_s,
                    result.compute_s,
                    result.started_at,
                    result.stretches,
                )
                for text, result in zip(texts, delivered, strict=True)
            ]
        )
        self._drift.sample(model, texts)

    def _count_truncated(self, model: EmbeddingModel, texts: Sequence[Prepared]) -> None:
        for text in texts:
            if text.was_truncated:
                self._observer.truncated(model=model.name)


def _tell(chunks: ChunkVectors, on_event: OnDocumentEvent, event: SweepEvent) -> None:
    if (news := chunks.heard(event)) is not None:
        on_event(news)


def _tell_at_once(document: DocumentEmbedding, total: int, on_event: OnDocumentEvent) -> None:
    """What a document's events are where it is done in one go."""
    if document.chunks:
        on_event(ChunksReady(chunks=document.chunks))
    on_event(Progress(tokens_done=total, tokens_total=total, seconds_left=0.0))
