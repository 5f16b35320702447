"""The engine for scripts: the same models and vectors as the asynchronous one, without a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from time import perf_counter
from types import TracebackType
from typing import Literal, Self, overload

import numpy as np

from engine.analysis.diagnosis import diagnosis_of, read_in_slices
from engine.analysis.diagnosis_plan import fit_plan, plan_diagnosis
from engine.attention_types import SAMPLED_ROWS, Diagnosis
from engine.checkpoint.registry import DEFAULT_MODEL
from engine.config import EngineConfig
from engine.execution.documents import prepare_document
from engine.execution.input_checks import (
    check_inputs,
    check_options,
    check_pools,
    check_vector_or_chunks,
)
from engine.execution.inputs import PIECE_TEXTS, PreparedText, lengths_alone, prepare, texts_alone
from engine.execution.model_runner import run_batch
from engine.execution.planner import Planner
from engine.execution.results import (
    StandaloneVectors,
    chunks_read_alone,
    document_embedding,
    embedding,
)
from engine.living.price import plan_of_update
from engine.living.record_bytes import from_bytes
from engine.living.rounds import Rounds, rounds_from
from engine.living.segmented_run import open_run
from engine.living.segmented_text import SegmentedText
from engine.living.update import ReadVectors
from engine.living_types import LivingEmbedding, RecordPrecision
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.ranks.fleet import Fleet
from engine.ranks.opening import open_over_ranks
from engine.scheduling.request import TimedResult
from engine.steps import finish
from engine.text.chunking import check_context
from engine.types import (
    Chunking,
    Context,
    DocumentChunks,
    DocumentEmbedding,
    Embedding,
    EmbedOptions,
    ModelInfo,
    Plan,
    TextInput,
    Vector,
)

_DEFAULTS = EmbedOptions()
_CONFIG = EngineConfig()


class Engine:
    """One model, used by one thread at a time."""

    def __init__(self, model: EmbeddingModel, *, config: EngineConfig = _CONFIG) -> None:
        self.model = model
        self.config = config
        self._fleet = Fleet([model], config) if config.ranks > 1 else None
        self._planner = Planner(
            config,
            model.encoder.device,
            num_ranks_for=self._fleet.num_ranks_for if self._fleet else lambda model, tokens: 1,
        )
        self._max_batch_tokens = config.batch_tokens_on(model.encoder.device.type)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="lln-tokenizer")
        if self._fleet is not None:
            self._fleet.start()

    @classmethod
    def load(
        cls,
        model: str = DEFAULT_MODEL,
        *,
        attention: str | Sequence[str] | None = None,
        device: str = "auto",
        dtype: str = "auto",
        config: EngineConfig | None = None,
    ) -> Self:
        """Load a model by folder or name. Without `attention`, it keeps its own: LLN+Diag for
        "default" and converted folders, softmax for published checkpoints."""
        config = config or EngineConfig(device=device, dtype=dtype)
        return cls(load_model(model, attention=attention, config=config), config=config)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._reader.shutdown()
        if self._fleet is not None:
            self._fleet.stop()

    @property
    def fleet(self) -> Fleet | None:
        """The ranks that read long documents together, if there are several."""
        return self._fleet

    @property
    def info(self) -> ModelInfo:
        return self.model.info

    def embed(self, inputs: Sequence[TextInput], *, options: EmbedOptions = _DEFAULTS) -> Vector:
        """Vectors of texts or lists of token ids, in their order: float32 [n, dim]."""
        check_pools(self.model)
        vectors = [item.vector for item in self.embed_each(inputs, options=options)]
        return np.stack(vectors) if len(vectors) > 1 else vectors[0][np.newaxis]

    def embed_each(
        self, inputs: Sequence[TextInput], *, options: EmbedOptions = _DEFAULTS
    ) -> list[Embedding]:
        """The same, with the accounting of each text."""
        check_inputs(inputs, self.config)
        check_options(options, self.model)
        return [
            embedding(text, result, self.model, options)
            for batch in self._batches(self._read_ahead(inputs, options))
            for text, result in zip(batch, self._run(batch), strict=True)
        ]

    @overload
    def embed_document(
        self,
        text: str,
        *,
        chunks: Chunking | None = None,
        title: str | None = None,
        options: EmbedOptions = _DEFAULTS,
        record: Literal[False] = False,
    ) -> DocumentEmbedding: ...

    @overload
    def embed_document(
        self,
        text: str,
        *,
        chunks: Chunking | None = None,
        title: str | None = None,
        options: EmbedOptions = _DEFAULTS,
        record: Literal[True] | RecordPrecision,
        fold: bool = False,
    ) -> LivingEmbedding: ...

    def embed_document(
        self,
        text: str,
        *,
        chunks: Chunking | None = None,
        title: str | None = None,
        options: EmbedOptions = _DEFAULTS,
        record: bool | RecordPrecision = False,
        fold: bool = False,
    ) -> DocumentEmbedding:
        """One vector for the whole document, and one for each of its late chunks. A title takes
        the place of the document's opening in the vectors of its chunks.

        With a record, the document is read segment by segment, and `update_document` reads it on
        after a change. A folded record is small at any length, for documents that only grow.
        """
        if record:
            precision: RecordPrecision = "float32" if record is True else record
            return self._living(
                Rounds(
                    *(text, self.model, options, chunks),
                    title=title,
                    precision=precision,
                    folded=fold,
                )
            )
        check_options(options, self.model)
        check_pools(self.model)
        document = prepare_document(text, self.model, options, chunks, title=title)
        alone = self._read_alone(document)
        (result,) = self._run([document])
        return document_embedding(document, result, options, alone)

    def embed_chunks(
        self,
        text: str,
        *,
        chunks: Chunking,
        title: str | None = None,
        options: EmbedOptions = _DEFAULTS,
    ) -> DocumentChunks:
        """The chunks of `embed_document`, the same to the bit. Where they take nothing from a
        reading of the whole document (context "linked", "opening" or "alone"), there is none."""
        check_options(options, self.model)
        check_pools(self.model)
        document = prepare_document(text, self.model, options, chunks, title=title)
        alone = self._read_alone(document)
        if document.has_only_passages_alone:
            return chunks_read_alone(document, options, alone)
        (result,) = self._run([document])
        found = document_embedding(document, result, options, alone)
        return DocumentChunks(chunks=found.chunks, accounting=found.accounting)

    def update_document(
        self,
        record: bytes,
        text: str,
        *,
        chunks: Chunking | None = None,
        title: str | None = None,
        options: EmbedOptions = _DEFAULTS,
        max_staleness: float | None = None,
        exact: bool = False,
    ) -> LivingEmbedding:
        """Embed the document as it is now, reading only segments that its record does not hold.

        With `max_staleness`, kept segments that may be further from a fresh reading are read again
        too; with `exact`, all are. Without `chunks` or `title`, those of the record hold; an
        empty title takes away the record's.
        """
        return self._living(
            rounds_from(
                *(from_bytes(record, self.model), text, self.model, options),
                chunks=chunks,
                title=title,
                max_staleness=max_staleness,
                exact=exact,
            )
        )

    def _living(self, rounds: Rounds) -> LivingEmbedding:
        check_options(rounds.options, self.model)
        answer = None
        while answer is None:
            document = finish(rounds.prepare())
            answer = rounds.take(document, self._read_segments(document.segmented))
        return answer

    def _read_segments(self, text: SegmentedText | None) -> ReadVectors:
        if text is None:
            return ReadVectors()
        alone = self._read_alone(text)
        (result,) = self._run([text])
        return ReadVectors(result, alone)

    def plan(self, tokens: int, *, context: Context | None = None, vector: bool = True) -> Plan:
        """What a text of this many tokens would take; with a context, with chunks of 256 tokens,
        and without `vector` those alone. The first plan takes up to a second."""
        check_vector_or_chunks(vector, context, "context")
        plan = self._planner.plan(self.model, tokens)
        if context is None:
            return plan
        check_context(context, "context")
        return self._planner.with_context(self.model, plan, context, vector=vector)

    def plan_update(self, record: bytes, text: str) -> Plan:
        """What `update_document` would take for this text, without what its staleness asks for."""
        rounds = rounds_from(from_bytes(record, self.model), text, self.model)
        return plan_of_update(finish(rounds.prepare()), self.model, self._planner)

    def diagnose(
        self,
        text: str,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        instruments: Sequence[str] | None = None,
        mode: str = "auto",
        sampled_rows: int = SAMPLED_ROWS,
        seed: int = 0,
        quantiles: Sequence[float] = (),
    ) -> Diagnosis:
        """What every head and layer does with this text."""
        asked = plan_diagnosis(
            self.model,
            layers,
            heads,
            instruments,
            mode,
            sampled_rows=sampled_rows,
            seed=seed,
            quantiles=quantiles,
        )
        document = prepare_document(text, self.model, _DEFAULTS, None)
        plan = fit_plan(asked, self.model, document.num_embedded, self.config)
        started_at = perf_counter()
        readings = finish(read_in_slices(self.model, document, plan))
        result = TimedResult(readings, queue_s=0.0, compute_s=perf_counter() - started_at)
        return diagnosis_of(self.model, document, plan, result)

    def _read_alone(self, document: PreparedText) -> StandaloneVectors:
        texts = texts_alone(document, self.model.tokenizer)
        passages = [result for batch in self._batches(texts) for result in self._run(batch)]
        return StandaloneVectors.of(passages, sum(lengths_alone(document, self.model.tokenizer)))

    def _read_ahead(
        self, inputs: Sequence[TextInput], options: EmbedOptions
    ) -> Iterator[PreparedText]:
        """Tokenise pieces ahead of the device. A single piece has nothing to be ahead of."""
        if len(inputs) <= PIECE_TEXTS:
            yield from prepare(inputs, self.model, options)
            return
        starts = range(0, len(inputs), PIECE_TEXTS)
        pieces = [
            self._reader.submit(
                prepare, inputs[at : at + PIECE_TEXTS], self.model, options, first_index=at
            )
            for at in starts
        ]
        for piece in pieces:
            yield from piece.result()

    def _batches(self, texts: Iterator[PreparedText]) -> Iterator[list[PreparedText]]:
        batch: list[PreparedText] = []
        tokens = 0
        for text in texts:
            is_alone = self._is_tiled(text)
            is_full = tokens + text.num_embedded > self._max_batch_tokens
            if batch and (is_alone or is_full or len(batch) == self.config.max_batch_sequences):
                yield batch
                batch, tokens = [], 0
            if is_alone:
                yield [text]
                continue
            batch.append(text)
            tokens += text.num_embedded
        if batch:
            yield batch

    def _run(self, batch: Sequence[PreparedText]) -> list[TimedResult[Vector]]:
        started_at = perf_counter()
        vectors = (
            self._run_tiled(*batch) if self._is_tiled(batch[0]) else run_batch(self.model, batch)
        )
        compute_s = perf_counter() - started_at
        return [TimedResult(vector, 0.0, compute_s) for vector in vectors]

    def _is_tiled(self, text: PreparedText) -> bool:
        if text.is_tiled is not None:
            return text.is_tiled
        return self._planner.is_tiled(self.model, text.num_embedded)

    def _run_tiled(self, text: PreparedText) -> list[Vector]:
        keep = self._planner.keeps_projections(self.model, text.num_embedded)
        over_ranks = open_over_ranks(self._fleet, self._planner, self.model, text)
        run = over_ranks or open_run(self.model, text, keep_projections=keep)
        with closing(run):
            while run.result is None:
                run.step()
        return [run.result]
