"""Texts as vectors: tokenised, admitted, and embedded on the device."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from engine.calls.core import DEFAULTS
from engine.calls.text_runs import TextRuns
from engine.execution.input_checks import (
    check_ids_are_ours,
    check_inputs,
    check_options,
    check_token_states,
)
from engine.execution.inputs import (
    PIECE_TEXTS,
    PreparedText,
    num_characters,
    prepare_steps,
    token_by_token,
)
from engine.execution.results import embedding, token_states
from engine.model.embedding_model import EmbeddingModel
from engine.platform.turns import beside_others_if_many
from engine.scheduling.deadline import Deadline
from engine.types import Embedding, EmbedOptions, TextInput


class EmbeddingCalls(TextRuns):
    """Embeds texts."""

    async def embed(
        self,
        inputs: Sequence[TextInput],
        *,
        model: str | None = None,
        options: EmbedOptions = DEFAULTS,
        timeout_s: float | None = None,
        wait_for_room: bool = False,
    ) -> list[Embedding]:
        """One vector for each text or list of token ids, in their order.

        With `wait_for_room`, the call waits while the queue is full, where others are refused.
        """
        deadline = Deadline(timeout_s)
        chosen = self._checked(inputs, model, options)
        pieces = self._prepared_pieces(inputs, chosen, options)
        if chosen.checkpoint.pooling == "none":  # its answers are states of tokens
            pieces = self._pieces_within_states(pieces)
        with self._worker.session() as session:
            texts, results = await self._run_texts(
                session, chosen, pieces, options, deadline, wait_for_room=wait_for_room
            )
        return await beside_others_if_many(
            lambda: [
                embedding(text, result, chosen, options)
                for text, result in zip(texts, results, strict=True)
            ],
            sum(len(result.value) for result in results),
        )

    async def embed_tokens(
        self,
        inputs: Sequence[TextInput],
        *,
        model: str | None = None,
        options: EmbedOptions = DEFAULTS,
        timeout_s: float | None = None,
        wait_for_room: bool = False,
    ) -> list[Embedding]:
        """The state of every token of each text, special ones included: [tokens, dim] each."""
        deadline = Deadline(timeout_s)
        chosen = self._checked(inputs, model, options)
        pieces = self._token_by_token(self._prepared_pieces(inputs, chosen, options))
        with self._worker.session() as session:
            texts, results = await self._run_texts(
                session, chosen, pieces, options, deadline, wait_for_room=wait_for_room
            )
        return await beside_others_if_many(
            lambda: [
                token_states(text, result, options)
                for text, result in zip(texts, results, strict=True)
            ],
            sum(len(result.value) for result in results),
        )

    def _checked(
        self, inputs: Sequence[TextInput], model: str | None, options: EmbedOptions
    ) -> EmbeddingModel:
        """Check the inputs and the options; return the model that will read them."""
        with self._counting_rejections():
            chosen = self._model(model)
            check_inputs(inputs, self.config)
            if model in self._aliases:
                check_ids_are_ours(inputs, model, chosen.name)
            check_options(options, chosen)
        return chosen

    async def _prepared_pieces(
        self, inputs: Sequence[TextInput], model: EmbeddingModel, options: EmbedOptions
    ) -> AsyncIterator[list[PreparedText]]:
        """Tokenise a piece at a time: the device starts while later inputs are tokenised."""
        for start in range(0, len(inputs), PIECE_TEXTS):
            piece = inputs[start : start + PIECE_TEXTS]
            yield await self._read(
                prepare_steps(piece, model, options, first_index=start),
                characters=num_characters(piece),
                is_admitted=start > 0,
            )

    async def _token_by_token(
        self, pieces: AsyncIterator[list[PreparedText]]
    ) -> AsyncIterator[list[PreparedText]]:
        """Ask for the state of every token."""
        async for piece in self._pieces_within_states(pieces):
            yield [token_by_token(text) for text in piece]

    async def _pieces_within_states(
        self, pieces: AsyncIterator[list[PreparedText]]
    ) -> AsyncIterator[list[PreparedText]]:
        """The same pieces, as long as their tokens' states stay within the limit of a call."""
        num_tokens = 0
        async for piece in pieces:
            num_tokens += sum(text.num_embedded for text in piece)
            with self._counting_rejections():
                check_token_states(num_tokens, self.config)
            yield piece
