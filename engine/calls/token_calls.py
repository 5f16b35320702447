"""What needs the tokenizer alone: plans of texts, their tokens, and ids as text."""

from __future__ import annotations

from collections.abc import Sequence

from engine.calls.core import DEFAULTS, EngineCore
from engine.errors import InvalidInput
from engine.execution.input_checks import check_ids_to_decode, check_input, check_vector_or_chunks
from engine.execution.prompts import prompt_of
from engine.execution.results import (
    decoded,
    tokenization,
)
from engine.scheduling.deadline import Deadline
from engine.text.chunking import check_context
from engine.types import (
    Context,
    Plan,
    Tokenization,
)


class TokenCalls(EngineCore):
    """Plans, tokenises and decodes, off the device."""

    async def plan(
        self,
        tokens: int | None = None,
        *,
        text: str | None = None,
        context: Context | None = None,
        vector: bool = True,
        model: str | None = None,
        timeout_s: float | None = None,
    ) -> Plan:
        """What a text, or a text of this many tokens, would take, and how it would run. With a
        context, the text is a document with chunks of 256 tokens, and with its own vector unless
        that is not asked for."""
        with self._counting_rejections():
            chosen = self._model(model)
            if (tokens is None) == (text is None):
                given = "neither" if tokens is None else "both"
                raise InvalidInput(
                    f"give tokens or text to plan for, one of the two; got {given}",
                    param="tokens",
                    actual=given,
                )
            check_vector_or_chunks(vector, context, "context")
            if context is not None:
                check_context(context, "context")
            if text is not None:
                check_input(text, "text")
                whole = prompt_of(DEFAULTS, chosen) + text
                steps = chosen.tokenizer.encode_steps([whole])
                async with Deadline(timeout_s).over():
                    (encoded,) = await self._tokenise(
                        steps, lambda found: found[0].num_tokens, characters=len(whole)
                    )
                tokens = encoded.num_tokens
            assert tokens is not None, "one of the two was given"
            plan = self._planner.plan(chosen, tokens)
            if context is None:
                return plan
            return self._planner.with_context(chosen, plan, context, vector=vector)

    async def tokenize(
        self, text: str, *, model: str | None = None, timeout_s: float | None = None
    ) -> Tokenization:
        """The text's tokens, and the characters that each stands for."""
        with self._counting_rejections():
            chosen = self._model(model)
            check_input(text, "text")
            steps = tokenization(text, chosen, max_tokens=self.config.max_text_tokens)
            async with Deadline(timeout_s).over():
                return await self._tokenise(
                    steps, lambda found: len(found.ids), characters=len(text)
                )

    async def decode(
        self,
        ids: Sequence[int],
        *,
        model: str | None = None,
        skip_special_tokens: bool = True,
        timeout_s: float | None = None,
    ) -> str:
        """The text of token ids. Tokenising it again need not give the same ids."""
        with self._counting_rejections():
            chosen = self._model(model)
            check_ids_to_decode(ids, self.config)
            steps = decoded(ids, chosen, skip_special_tokens=skip_special_tokens)
            async with Deadline(timeout_s).over():
                return await self._pool.run(steps, characters=len(ids))
