"""From the vectors of the device to what the caller asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite
from time import perf_counter
from typing import Any, NamedTuple, Self

import numpy as np

from engine.errors import DeviceFailure, TextTooLong
from engine.execution.inputs import PreparedText
from engine.execution.model_runner import TiledEvent
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.request import TimedResult
from engine.steps import Steps
from engine.types import (
    Accounting,
    Chunk,
    ChunksReady,
    DocumentChunks,
    DocumentEmbedding,
    DocumentEvent,
    Embedding,
    EmbedOptions,
    Plan,
    Progress,
    Tokenization,
    Vector,
)


def embedding(
    text: PreparedText, result: TimedResult[Vector], model: EmbeddingModel, options: EmbedOptions
) -> Embedding:
    vectors = finish_vectors(result.value, options)
    pooled = model.checkpoint.pooling != "none"
    return Embedding(vector=vectors[0] if pooled else vectors, accounting=accounting(text, result))


def token_states(
    text: PreparedText, result: TimedResult[Vector], options: EmbedOptions
) -> Embedding:
    return Embedding(
        vector=finish_vectors(result.value, options), accounting=accounting(text, result)
    )


class StandaloneVectors(NamedTuple):
    """Vectors of a document's title and passages, each read as a text of its own."""

    vectors: Sequence[Vector] = ()  # each [1, dim]; the title's first, if there is one
    compute_s: float = 0.0
    tokens: int = 0
    queue_s: float = 0.0  # of the first

    @classmethod
    def of(cls, results: Sequence[TimedResult[Vector]], tokens: int = 0) -> Self:
        # Passages that ran in the same unit started together. Its time counts once.
        units = {(result.started_at, result.compute_s) for result in results}
        vectors = [result.value for result in results]
        queue_s = results[0].queue_s if results else 0.0
        return cls(vectors, sum(seconds for _, seconds in units), tokens, queue_s)


NO_STANDALONE = StandaloneVectors()


def document_embedding(
    document: PreparedText,
    result: TimedResult[Vector],
    options: EmbedOptions,
    alone: StandaloneVectors = NO_STANDALONE,
) -> DocumentEmbedding:
    chunks = ChunkBuilder(document, options, alone)
    total = result._replace(compute_s=result.compute_s + alone.compute_s)
    return DocumentEmbedding(
        vector=finish_vectors(result.value[:1], options)[0],
        chunks=chunks.build(0, result.value[1:]),
        accounting=replace(accounting(document, total), tokens_alone=alone.tokens),
    )


def chunks_read_alone(
    document: PreparedText,
    options: EmbedOptions,
    alone: StandaloneVectors,
) -> DocumentChunks:
    """The chunks of a document that was not read, as none of them takes anything from it."""
    # The title's vector is not that of a span.
    of_spans = np.concatenate(alone.vectors[document.title is not None :])
    return DocumentChunks(
        chunks=ChunkBuilder(document, options, alone).build(0, of_spans),
        accounting=Accounting(
            tokens=document.num_tokens,
            tokens_embedded=document.num_embedded,
            dropped=document.dropped,
            queue_s=alone.queue_s,
            compute_s=alone.compute_s,
            tokens_alone=alone.tokens,
            tokens_saved=document.num_embedded,
        ),
    )


class ChunkBuilder:
    """Builds one document's chunks from pooled vectors, which come in order: some at a time, or all
    at once."""

    def __init__(
        self,
        document: PreparedText,
        options: EmbedOptions,
        alone: StandaloneVectors = NO_STANDALONE,
    ) -> None:
        self._document = document
        self._options = options
        vectors = list(alone.vectors)
        has_title = document.title is not None
        # [dim]; without a title, the opening's own vector, which comes first of all
        self._opening: Vector | None = vectors.pop(0)[0] if has_title else None
        self._has_opening_span = bool(document.opening) and not has_title
        # [spans but the first, dim]
        self._alone = np.concatenate(vectors) if vectors else None

    def document_event(self, event: TiledEvent) -> DocumentEvent | None:
        """An event of the tiled run as the caller sees it; None if there is no chunk yet."""
        if isinstance(event, Progress):
            return event
        chunks = self.build(event.first, event.vectors)
        return ChunksReady(chunks=chunks) if chunks else None

    def build(self, first: int, vectors: Vector) -> tuple[Chunk, ...]:
        """The chunks of these vectors, which begin with the document's vector number `first`. The
        opening's vector, where one is asked for, comes before those of the chunks."""
        document = self._document
        if self._alone is not None and len(vectors):
            standalone = self._alone[first : first + len(vectors)]
            vectors = blend_standalone(vectors, standalone, document.alone)
        if self._has_opening_span and len(vectors):
            if first == 0:
                self._opening, vectors = vectors[0], vectors[1:]
            else:
                first -= 1
        if not len(vectors):
            return ()
        spans = document.chunks[first : first + len(vectors)]
        if self._opening is not None:
            vectors = add_opening(vectors, self._opening, document.opening)
        return tuple(
            Chunk(
                index=index,
                tokens=span.tokens,
                characters=span.characters,
                vector=vector,
                headings=span.headings,
            )
            for index, (span, vector) in enumerate(
                zip(spans, finish_vectors(vectors, self._options), strict=True), first
            )
        )


class WholeProgress:
    """Reports events of a document, with progress over all that is read of it: what is read alone,
    and then the document, unless its plan leaves that out. Progress stays in tokens of the
    document."""

    def __init__(self, plan: Plan, on_event: Callable[[DocumentEvent], None]) -> None:
        self._send = on_event
        self._tokens = plan.tokens
        self._tokens_alone = plan.tokens_alone
        self._tokens_in_all = plan.tokens_alone + plan.tokens_read
        self._read_alone = 0
        self._began_at = perf_counter()

    def report_alone(self, num_tokens: int) -> None:
        """Counts tokens that were read alone. A title's may be counted after those of passages that
        began later: there is no way back."""
        self._read_alone = max(self._read_alone, num_tokens)
        left = self._tokens_in_all - self._read_alone
        elapsed_s = perf_counter() - self._began_at
        self._send(
            Progress(
                tokens_done=self._scaled(self._read_alone),
                tokens_total=self._tokens,
                seconds_left=elapsed_s * left / self._read_alone,
            )
        )

    def report(self, chunks: ChunkBuilder, event: TiledEvent) -> None:
        """An event of the document's tiled run."""
        found = chunks.document_event(event)
        if isinstance(found, Progress):
            self.report_tiled(found)
        elif found is not None:
            self._send(found)

    def report_tiled(self, event: TiledEvent) -> None:
        """The progress of the document's tiled run, without its chunks."""
        if isinstance(event, Progress):
            done = self._tokens_alone + event.tokens_done
            self._send(replace(event, tokens_done=self._scaled(done)))

    def _scaled(self, num_tokens: int) -> int:
        return num_tokens * self._tokens // self._tokens_in_all


def accounting(text: PreparedText, result: TimedResult[Any]) -> Accounting:
    return Accounting(
        tokens=text.num_tokens,
        tokens_embedded=text.num_embedded,
        dropped=text.dropped,
        queue_s=result.queue_s,
        compute_s=result.compute_s,
    )


def finish_vectors(vectors: Vector, options: EmbedOptions) -> Vector:
    """Keep the dimensions asked for, then normalise: rows of [n, dim]."""
    lengths = _lengths(vectors)
    if not all(map(isfinite, lengths)):
        raise DeviceFailure(
            "the model returned numbers that are not finite", code="non_finite_output"
        )
    if options.dimensions is not None:
        vectors = vectors[:, : options.dimensions]
    if not options.normalize:
        return np.ascontiguousarray(vectors)
    if options.dimensions is not None:
        lengths = _lengths(vectors)
    divisors = np.array([length or 1.0 for length in lengths], dtype=np.float32)
    normalised: Vector = vectors / divisors[:, None]
    return normalised


def _lengths(vectors: Vector) -> list[float]:
    """The length of each row, not finite where the row is not.

    One array operation gives Python numbers to go on with: a short query waits for each of them.
    """
    squares: list[float] = np.einsum("nd,nd->n", vectors, vectors).tolist()
    return [square**0.5 for square in squares]


def blend_standalone(late: Vector, alone: Vector, share: float) -> Vector:
    """Turn vectors of passages read within their document towards those of the same passages read
    alone, by this share: rows of [n, dim]. A share of 1 takes nothing from the document, not even
    the length."""
    if share == 1:
        return alone
    lengths = np.linalg.norm(alone, axis=1, keepdims=True)
    directions = alone / np.where(lengths == 0, 1, lengths)
    within = np.linalg.norm(late, axis=1, keepdims=True)
    mixed: Vector = (1 - share) * late + share * within * directions
    return mixed


def add_opening(vectors: Vector, opening: Vector, share: float) -> Vector:
    """Add the direction of the document's opening [dim] to each vector, by a share of its own
    length."""
    length = float(np.linalg.norm(opening)) or 1.0
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    moved: Vector = vectors + lengths * (share / length * opening)
    return moved


def tokenization(text: str, model: EmbeddingModel, *, max_tokens: int) -> Steps[Tokenization]:
    """Read a text of at most this many tokens: each of them is part of the answer."""

    def check(index: int, num_tokens: int) -> None:
        if num_tokens > max_tokens:
            raise TextTooLong(
                f"the text has more than {max_tokens} tokens, which is the limit of one answer",
                param="text",
                limit=max_tokens,
                actual=num_tokens,
            )

    (encoded,) = yield from model.tokenizer.encode_steps([text], with_offsets=True, check=check)
    check(0, encoded.num_tokens)
    return Tokenization(
        ids=encoded.ids,
        offsets=encoded.offsets,
        tokens=model.tokenizer.tokens_of(encoded.ids),
    )


def decoded(ids: Sequence[int], model: EmbeddingModel, *, skip_special_tokens: bool) -> Steps[str]:
    """The text of token ids."""
    checked = model.tokenizer.validate_ids(ids, param="ids")
    yield
    return model.tokenizer.decode(checked, skip_special_tokens=skip_special_tokens)
