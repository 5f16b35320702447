"""The engine for servers: many callers, several models, one device thread."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import Literal, Self, TypeAlias, TypeVar

from engine.answers import (
    chunks_from,
    document_embedding,
    document_event,
    embedding,
    token_states,
    tokenization,
)
from engine.benchmark import BenchmarkPlan, benchmark_result, encoder_rows
from engine.claims import (
    ClaimRow,
    HeadSample,
    Material,
    find_claims,
    head_samples,
)
from engine.claims.heads import MAX_TOKENS
from engine.claims.worker import checked_apart
from engine.config import EngineConfig
from engine.diagnose import LayerReadings, diagnosis_of, readings_in_slices
from engine.diagnosis_plan import fit_plan, plan_diagnosis
from engine.documents import DocumentStream
from engine.drift import DriftSampler, drift_plan, tell_drift
from engine.errors import DeadlineExceeded, InvalidInput, LLNError, ModelNotFound
from engine.model.embedding_model import DEFAULT_MODEL, EmbeddingModel, load_models
from engine.observer import EngineObserver, Served
from engine.plan import Planner
from engine.prepare import (
    Prepared,
    check_inputs,
    check_options,
    check_pools,
    check_token_states,
    prepare,
    token_by_token,
)
from engine.price import price_of
from engine.reader import DocumentReader, prepare_document
from engine.runner import run_batch
from engine.scheduler import Scheduler
from engine.sweep import Sweep, SweepEvent
from engine.thread import Delivered, DeviceThread, Order
from engine.types import (
    BenchmarkResult,
    BenchmarkRow,
    Chunking,
    ChunksReady,
    Diagnosis,
    DocumentEmbedding,
    DocumentEvent,
    Embedding,
    EmbedOptions,
    ModelInfo,
    Plan,
    Progress,
    TextInput,
    Tokenization,
    Vector,
)

logger = logging.getLogger(__name__)

_DEFAULTS = EmbedOptions()
_CONFIG = EngineConfig()
_CANARY = "A short text, to see that the model answers."
PIECE_TEXTS = 64
"""Texts tokenised together: few enough that the device starts while the next ones are read."""

OnDocumentEvent: TypeAlias = Callable[[DocumentEvent], None]
Item = TypeVar("Item")


class AsyncEngine:
    """Several models behind one device thread."""

    def __init__(
        self,
        models: Sequence[EmbeddingModel],
        *,
        config: EngineConfig = _CONFIG,
        observer: EngineObserver | None = None,
    ) -> None:
        assert models, "an engine serves at least one model"
        self.config = config
        self._observer = observer or EngineObserver()
        self._models = {model.name: model for model in models}
        self._default = models[0]
        self._canary_ran = False
        self._planner = Planner(config, models[0].encoder.device)
        self._drift = DriftSampler(config)
        self._drift_tasks: set[asyncio.Task[None]] = set()
        self._thread = DeviceThread[Prepared, Vector](
            run=self._run,
            sweep=self._sweep,
            scheduler=_scheduler(models, config, self._planner.max_bytes),
            observer=self._observer,
        )

    @classmethod
    def load(
        cls,
        names: Sequence[str] = (DEFAULT_MODEL,),
        *,
        config: EngineConfig = _CONFIG,
        observer: EngineObserver | None = None,
    ) -> Self:
        """Read the weights of these models; nothing runs before the engine is entered."""
        return cls(load_models(names, config=config), config=config, observer=observer)

    async def __aenter__(self) -> Self:
        await self._thread.start()
        try:
            for name, model in self._models.items():
                await self._thread.call(price_of, model.encoder, kind="calibration", model=name)
                await self.embed([_CANARY], model=name)
        except BaseException:
            await self._thread.stop(0)
            raise
        self._canary_ran = True
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._drift_tasks:
            task.cancel()
        await self._thread.stop(self.config.drain_timeout_s)

    @property
    def ready(self) -> bool:
        """Whether every model has answered, and the device thread lives, takes work and gets on
        with it."""
        thread = self._thread
        return self._canary_ran and thread.alive and thread.accepting and not self.stuck

    @property
    def stuck(self) -> bool:
        """Whether the device has been at one unit of work for longer than any should take."""
        return self._thread.busy_s > self.config.stuck_after_s

    @property
    def models(self) -> Mapping[str, ModelInfo]:
        return {name: model.info for name, model in self._models.items()}

    def resolve(self, name: str | None) -> ModelInfo:
        return self._model(name).info

    def stop_accepting(self) -> None:
        """Refuse new work from now on; accepted work is still done."""
        self._thread.stop_accepting()

    async def embed(
        self,
        inputs: Sequence[TextInput],
        *,
        model: str | None = None,
        options: EmbedOptions = _DEFAULTS,
        timeout_s: float | None = None,
    ) -> list[Embedding]:
        """One vector for each text or list of token ids, in their order."""
        with self._counting_rejections():
            chosen = self._model(model)
            check_inputs(inputs, self.config)
            check_options(options, chosen)
        pieces = self._prepared_pieces(inputs, chosen, options)
        texts, delivered = await self._run_texts(chosen, pieces, options, timeout_s)
        return [
            embedding(text, result, chosen, options)
            for text, result in zip(texts, delivered, strict=True)
        ]

    async def embed_tokens(
        self,
        inputs: Sequence[TextInput],
        *,
        model: str | None = None,
        options: EmbedOptions = _DEFAULTS,
        timeout_s: float | None = None,
    ) -> list[Embedding]:
        """The state of every token of each text, special ones included: [tokens, dim] each."""
        with self._counting_rejections():
            chosen = self._model(model)
            check_inputs(inputs, self.config)
            check_options(options, chosen)
        pieces = self._token_by_token(self._prepared_pieces(inputs, chosen, options))
        texts, delivered = await self._run_texts(chosen, pieces, options, timeout_s)
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
        options: EmbedOptions = _DEFAULTS,
        timeout_s: float | None = None,
        on_event: OnDocumentEvent | None = None,
    ) -> DocumentEmbedding:
        """One vector for the whole document, and one for each of its late chunks. `on_event` is
        called on the event loop with what there is to tell on the way."""
        with self._counting_rejections():
            chosen = self._document_model(model, options)
        (prepared,) = await self._read(lambda: [prepare_document(text, chosen, options, chunks)])
        return await self._run_document(chosen, prepared, options, timeout_s, on_event)

    def open_document(
        self,
        *,
        model: str | None = None,
        chunks: Chunking | None = None,
        options: EmbedOptions = _DEFAULTS,
        timeout_s: float | None = None,
        on_event: OnDocumentEvent | None = None,
    ) -> DocumentStream:
        """The same for a document that comes in pieces."""
        with self._counting_rejections():
            chosen = self._document_model(model, options)
            reader = DocumentReader(chosen, options, chunks, in_pieces=True)

        async def run(prepared: Prepared, timeout_s: float | None) -> DocumentEmbedding:
            return await self._run_document(chosen, prepared, options, timeout_s, on_event)

        return DocumentStream(reader, run, timeout_s, self._counting_rejections)

    async def plan(
        self, tokens: int | None = None, *, text: str | None = None, model: str | None = None
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
                check_inputs([text], self.config)
                encoded = await asyncio.to_thread(chosen.tokenizer.encode_batch, [text])
                tokens = encoded[0].num_tokens
            assert tokens is not None, "one of the two was given"
            return self._planner.plan(chosen, tokens)

    async def tokenize(self, text: str, *, model: str | None = None) -> Tokenization:
        """The text's tokens and the characters each stands for."""
        with self._counting_rejections():
            chosen = self._model(model)
            check_inputs([text], self.config)
            return await asyncio.to_thread(tokenization, text, chosen)

    async def diagnose(
        self,
        text: str,
        *,
        model: str | None = None,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        instruments: Sequence[str] | None = None,
        mode: str = "auto",
        timeout_s: float | None = None,
    ) -> Diagnosis:
        """What every head and layer does with this text. Embeddings run between its steps."""
        with self._counting_rejections():
            chosen = self._model(model)
            asked = plan_diagnosis(chosen, layers, heads, instruments, mode)
            prepared = await asyncio.to_thread(prepare_document, text, chosen, _DEFAULTS, None)
            plan = fit_plan(asked, chosen, prepared.num_embedded, self.config)
        steps = self._in_turns(
            readings_in_slices(chosen, prepared, plan), "diagnosis", chosen, prepared.num_embedded
        )
        async with _deadline(timeout_s):
            done = [step async for step in steps]
        return diagnosis_of(chosen, prepared, plan, done)

    async def benchmark(
        self,
        *,
        lengths: Sequence[int],
        attentions: Sequence[str],
        repeats: int,
        training: bool = False,
        model: str | None = None,
        progress: Callable[[BenchmarkRow], None] | None = None,
    ) -> BenchmarkResult:
        """Tokens a second by length on this machine. Other work runs in between its layers."""
        with self._counting_rejections():
            chosen = self._model(model)
            plan = BenchmarkPlan.checked(lengths, attentions, repeats, chosen, training=training)
        rows: list[BenchmarkRow] = []
        async for row in self.measure(lambda _: encoder_rows(plan), model=model):
            rows.append(row)
            if progress is not None:
                progress(row)
        return benchmark_result(chosen, rows)

    async def measure(
        self,
        plan: Callable[[EmbeddingModel], Iterator[Sequence[Item]]],
        *,
        model: str | None = None,
    ) -> AsyncIterator[Item]:
        """The rows of a benchmark as they come. Other work runs in between its steps."""
        with self._counting_rejections():
            chosen = self._model(model)
            steps = plan(chosen)
        async for step in self._in_turns(steps, "benchmark", chosen, 0):
            for row in step.value:
                yield row

    async def claims(
        self,
        *,
        only: Sequence[str] | None = None,
        text: str | None = None,
        model: str | None = None,
        thorough: bool = False,
        progress: Callable[[ClaimRow], None] | None = None,
    ) -> list[ClaimRow]:
        """What papers claim of attention, checked here, also on the heads that read `text`.

        Only those heads are computed on the device; the rest in a process of low priority.
        """
        with self._counting_rejections():
            chosen = self._model(model)
            claims = find_claims(only)
        heads: tuple[HeadSample, ...] = ()
        if text is not None:
            heads = await self.head_samples(text, model=chosen.name, every_head=thorough)
        rows: list[ClaimRow] = []
        async for row in checked_apart(claims, Material(heads=heads, thorough=thorough)):
            rows.append(row)
            if progress is not None:
                progress(row)
        return rows

    async def head_samples(
        self, text: str, *, model: str | None = None, every_head: bool = False
    ) -> tuple[HeadSample, ...]:
        """Queries and keys of heads that read the beginning of this text: one a layer, or all."""
        with self._counting_rejections():
            chosen = self._model(model)
            prepared = await asyncio.to_thread(prepare_document, text, chosen, _DEFAULTS, None)
        layers = head_samples(chosen, prepared, every_head=every_head)
        steps = self._in_turns(layers, "diagnosis", chosen, MAX_TOKENS)
        return tuple([sample async for step in steps for sample in step.value])

    async def _prepared_pieces(
        self, inputs: Sequence[TextInput], model: EmbeddingModel, options: EmbedOptions
    ) -> AsyncIterator[list[Prepared]]:
        """Inputs a piece at a time, so that the device starts while later ones are tokenised."""
        for start in range(0, len(inputs), PIECE_TEXTS):
            piece = inputs[start : start + PIECE_TEXTS]
            yield await self._read(partial(prepare, piece, model, options, first_index=start))

    async def _read(self, texts_to_tokens: Callable[[], list[Prepared]]) -> list[Prepared]:
        """Runs the tokenizer off the loop."""
        started_at = time.perf_counter()
        with self._counting_rejections():
            texts = await asyncio.to_thread(texts_to_tokens)
        self._observer.tokenised(
            texts=len(texts),
            tokens=sum(text.num_tokens for text in texts),
            seconds=time.perf_counter() - started_at,
        )
        return texts

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
        timeout_s: float | None,
        on_event: OnDocumentEvent | None,
    ) -> DocumentEmbedding:
        def tell(event: SweepEvent) -> None:
            assert on_event is not None, "nobody asked for events"
            on_event(document_event(document, event, options))

        listener = tell if on_event is not None else None
        with self._counting_rejections():
            order = self._order(model, document, options, timeout_s, listener)
        (future,) = self._thread.submit_all(model.name, [order], timeout_s)
        self._count_truncated(model, [document])
        try:
            result = await future
            self._learn_from(model, [document], [result])
        finally:
            future.cancel()
        self._sample_drift(model, [document])
        if on_event is not None and not order.sweep:
            _tell_at_once(document, result, options, on_event)
        self._tell_served([document], [result])
        return document_embedding(document, result, options)

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
        timeout_s: float | None,
    ) -> tuple[list[Prepared], list[Delivered[Vector]]]:
        """Queue texts as they are read. If one fails or the caller leaves, the others are given
        up too: nobody would see them. The deadline counts from here: reading takes time too."""
        texts: list[Prepared] = []
        futures: list[asyncio.Future[Delivered[Vector]]] = []
        started_at = time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                async for piece in pieces:
                    texts += piece
                    with self._counting_rejections():
                        orders = [self._order(model, text, options, timeout_s) for text in piece]
                    with _as_the_whole_deadline(timeout_s, started_at):
                        left_s = _left(timeout_s, started_at)
                        futures += self._thread.submit_all(model.name, orders, left_s)
                    self._count_truncated(model, piece)
            with _as_the_whole_deadline(timeout_s, started_at):
                delivered = await asyncio.gather(*futures)
            self._learn_from(model, texts, delivered)
            self._tell_served(texts, delivered)
            self._sample_drift(model, texts)
            return texts, delivered
        except TimeoutError:  # before all of it was queued
            self._observer.rejected(reason=DeadlineExceeded.code)
            raise _deadline_exceeded(timeout_s, started_at) from None
        finally:
            for future in futures:
                future.cancel()

    def _sample_drift(self, model: EmbeddingModel, texts: Sequence[Prepared]) -> None:
        """Read one of these texts later, if its turn has come. Nobody waits for that."""
        text = self._drift.choose(texts)
        if text is not None:
            task = asyncio.create_task(self._read_drift(model, text))
            self._drift_tasks.add(task)
            task.add_done_callback(self._drift_tasks.discard)

    async def _read_drift(self, model: EmbeddingModel, text: Prepared) -> None:
        plan = drift_plan(model)
        try:
            if plan is None:
                return
            layers: list[LayerReadings] = []
            steps = readings_in_slices(model, text, plan)
            async for step in self._in_turns(steps, "drift", model, text.num_embedded):
                layers += step.value
                self._drift.spend(step.compute_s)
            tell_drift(self._observer, model.name, plan, layers)
        except LLNError as error:
            logger.info("a sample for drift was given up: %s", error)
        finally:
            self._drift.done()

    async def _in_turns(
        self,
        steps: Iterator[Item],
        kind: Literal["diagnosis", "benchmark", "drift"],
        model: EmbeddingModel,
        tokens: int,
    ) -> AsyncIterator[Delivered[Item]]:
        """Each step of exclusive work as a call of its own, so that texts run in between."""
        while True:
            step = await self._thread.call(
                partial(next, steps, None), kind=kind, model=model.name, tokens=tokens
            )
            if step.value is None:
                return
            yield Delivered(step.value, step.queue_s, step.compute_s)

    def _run(self, name: str, texts: Sequence[Prepared]) -> list[Vector]:
        model, started_at = self._models[name], perf_counter()
        vectors = run_batch(model, texts)
        lengths = [text.num_embedded for text in texts]
        self._planner.ran_batch(model, lengths, perf_counter() - started_at)
        return vectors

    def _sweep(self, name: str, text: Prepared) -> Sweep:
        model = self._models[name]
        return Sweep(
            model,
            text,
            keep_projections=self._planner.keeps_projections(model, text.num_embedded),
            on_out_of_memory=self._observer.recovered_from_oom,
        )

    def _order(
        self,
        model: EmbeddingModel,
        text: Prepared,
        options: EmbedOptions,
        timeout_s: float | None,
        on_event: Callable[[SweepEvent], None] | None = None,
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
            on_event=on_event,
        )

    def _learn_from(
        self,
        model: EmbeddingModel,
        texts: Sequence[Prepared],
        delivered: Sequence[Delivered[Vector]],
    ) -> None:
        """What sweeps took in the end; what batches take is noted when they run."""
        for text, result in zip(texts, delivered, strict=True):
            if self._planner.is_swept(model, text.num_embedded):
                self._planner.ran_sweep(model, text.num_embedded, result.compute_s)

    def _model(self, name: str | None) -> EmbeddingModel:
        if name is None:
            return self._default
        if name not in self._models:
            served = ", ".join(self._models)
            raise ModelNotFound(
                f"model {name!r} is not served here; served are {served}",
                param="model",
                limit=served,
                actual=name,
            )
        return self._models[name]

    def _tell_served(
        self, texts: Sequence[Prepared], delivered: Sequence[Delivered[Vector]]
    ) -> None:
        self._observer.served(
            [
                Served(text.num_embedded, result.queue_s, result.compute_s, result.started_at)
                for text, result in zip(texts, delivered, strict=True)
            ]
        )

    def _count_truncated(self, model: EmbeddingModel, texts: Sequence[Prepared]) -> None:
        for text in texts:
            if text.was_truncated:
                self._observer.truncated(model=model.name)

    @contextmanager
    def _counting_rejections(self) -> Iterator[None]:
        """For checks made before the device thread's door, which counts its own refusals."""
        try:
            yield
        except LLNError as error:
            self._observer.rejected(reason=error.code)
            raise


def _scheduler(
    models: Sequence[EmbeddingModel], config: EngineConfig, max_sweep_bytes: int
) -> Scheduler:
    return Scheduler(
        max_batch_tokens=config.batch_tokens_on(models[0].encoder.device.type),
        max_batch_sequences=config.max_batch_sequences,
        max_queue_tokens=config.max_queue_tokens,
        max_sweep_bytes=max_sweep_bytes,
        long_share=config.long_percent / 100,
    )


def _tell_at_once(
    document: Prepared,
    result: Delivered[Vector],
    options: EmbedOptions,
    on_event: OnDocumentEvent,
) -> None:
    """What a document's events are where it is done in one go."""
    if chunks := chunks_from(document, 0, result.value[1:], options):
        on_event(ChunksReady(chunks=chunks))
    total = document.num_embedded
    on_event(Progress(tokens_done=total, tokens_total=total, seconds_left=0.0))


def _left(timeout_s: float | None, started_at: float) -> float | None:
    return None if timeout_s is None else timeout_s - (time.monotonic() - started_at)


@contextmanager
def _as_the_whole_deadline(timeout_s: float | None, started_at: float) -> Iterator[None]:
    """The thread knows what was left when it got the work; the caller knows what it asked for."""
    try:
        yield
    except DeadlineExceeded:
        raise _deadline_exceeded(timeout_s, started_at) from None


def _deadline_exceeded(timeout_s: float | None, started_at: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"The deadline of {timeout_s:g} s passed before the work was done.",
        limit=timeout_s,
        actual=round(time.monotonic() - started_at, 6),
    )


@asynccontextmanager
async def _deadline(timeout_s: float | None) -> AsyncIterator[None]:
    started_at = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        raise _deadline_exceeded(timeout_s, started_at) from None
