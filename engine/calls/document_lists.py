"""The chunks of several documents in one call: cut from their texts, or as they are given."""

from __future__ import annotations

from collections.abc import Sequence

from engine.calls.core import DEFAULTS
from engine.calls.document_runs import DocumentRuns
from engine.errors import LLNError
from engine.execution.documents import prepare_document_steps
from engine.execution.given_chunks import (
    check_document_count,
    check_documents,
    prepare_given_steps,
)
from engine.execution.input_checks import check_input
from engine.execution.inputs import PreparedText
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.deadline import Deadline
from engine.steps import Steps, one_step
from engine.text.chunking import check_context
from engine.text.pieces import pieces
from engine.types import Chunking, Context, DocumentChunks, EmbedOptions, Span


class DocumentListCalls(DocumentRuns):
    """Reads all documents before the first is embedded, so that one at fault fails the call before
    it costs anything."""

    async def embed_given_chunks(
        self,
        documents: Sequence[Sequence[str]],
        *,
        model: str | None = None,
        context: Context | None = None,
        options: EmbedOptions = DEFAULTS,
        timeout_s: float | None = None,
    ) -> list[DocumentChunks]:
        """One vector for each of the given chunks of each document. A chunk is tokenised alone, and
        read as `context` says, or as the model's own, within its document, which is its chunks put
        together."""
        deadline = Deadline(timeout_s)
        with self._counting_rejections():
            chosen = self._document_model(model, options)
            context = context or chosen.info.chunk_context
            check_context(context, "context")
            check_documents(documents, self.config)
        characters = sum(len(chunk) for chunks in documents for chunk in chunks)
        steps = prepare_given_steps(documents, chosen, options, context)
        prepared = await self._read(steps, deadline, characters=characters)
        return await self._embed_prepared(chosen, prepared, options, deadline)

    async def embed_chunks_of(
        self,
        texts: Sequence[str],
        *,
        model: str | None = None,
        chunks: Chunking,
        options: EmbedOptions = DEFAULTS,
        timeout_s: float | None = None,
    ) -> list[DocumentChunks]:
        """The same as `embed_chunks` for each of the texts."""
        deadline = Deadline(timeout_s)
        with self._counting_rejections():
            chosen = self._document_model(model, options)
            check_document_count(len(texts), self.config)
            for index, text in enumerate(texts):
                check_input(text, f"documents[{index}]")
        steps = _prepare_each(texts, chosen, options, chunks)
        prepared = await self._read(steps, deadline, characters=sum(map(len, texts)))
        return await self._embed_prepared(chosen, prepared, options, deadline)

    async def cut_text(
        self, text: str, *, max_characters: int, timeout_s: float | None = None
    ) -> list[Span]:
        """The text in pieces of whole sentences, each of at most this many characters."""
        with self._counting_rejections():
            check_input(text, "text")
            steps = one_step(lambda: pieces(text, max_characters))
            async with Deadline(timeout_s).over():
                return await self._pool.run(steps, characters=len(text))

    async def _embed_prepared(
        self,
        model: EmbeddingModel,
        documents: Sequence[PreparedText],
        options: EmbedOptions,
        deadline: Deadline,
    ) -> list[DocumentChunks]:
        self._admit_documents(model, documents, deadline)
        with self._worker.session() as session:
            return await self._run_documents(
                *(session, model, documents, options, deadline), take=lambda found: found
            )


def _prepare_each(
    texts: Sequence[str], model: EmbeddingModel, options: EmbedOptions, chunks: Chunking
) -> Steps[list[PreparedText]]:
    prepared = []
    for index, text in enumerate(texts):
        try:
            prepared.append((yield from prepare_document_steps(text, model, options, chunks)))
        except LLNError as error:
            if error.param != "text":
                raise
            raise error.about(f"documents[{index}]") from error
    return prepared
