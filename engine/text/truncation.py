"""Cuts a text to a model's limit, if the caller asked for that, and reports what was dropped.

`truncate` cuts a text that is already encoded. `TruncatingBuffer` takes the tokens of a stream and
forgets those that do not fit, so that a text far beyond the limit costs no memory.

The policy "start" drops the beginning of a text, "end" drops its end, and "error" rejects a text
that is too long. Special tokens and the prompt are never dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from engine.errors import InvalidInput, TextTooLong
from engine.text.encoded import Encoded
from engine.text.tokenizer import TextTokenizer
from engine.types import Ids, Offsets, Span, Truncate


class Truncated(NamedTuple):
    """A text within a model's limit."""

    encoded: Encoded
    num_tokens: int  # of the whole text
    dropped: Span | None  # characters; None if nothing was dropped, or for token input


def truncate(
    encoded: Encoded,
    tokenizer: TextTokenizer,
    *,
    max_tokens: int,
    policy: Truncate = "error",
    prompt_length: int = 0,
    param: str | None = None,
) -> Truncated:
    """Cuts an encoded text to `max_tokens`, special tokens included.

    The first `prompt_length` characters are the prompt; `dropped` counts from the text behind it.
    """
    if encoded.num_tokens <= max_tokens:
        return Truncated(encoded, encoded.num_tokens, None)
    if policy == "error":
        raise too_long(encoded.num_tokens, max_tokens, param)
    buffer = TruncatingBuffer(
        tokenizer, max_tokens=max_tokens, policy=policy, prompt_length=prompt_length
    )
    end = encoded.num_prefix + encoded.num_content
    offsets = encoded.offsets[encoded.num_prefix : end] if encoded.has_characters else None
    buffer.take(encoded.content, offsets)
    return buffer.result()


class _Block(NamedTuple):
    ids: Ids
    offsets: Offsets | None


class TruncatingBuffer:
    """Takes the tokens of a prompt and a text in their order, and forgets those that do not fit.

    Offsets are needed only with a prompt or a policy other than "error". In the result they count
    from the start of the text behind the prompt.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        *,
        max_tokens: int,
        policy: Truncate,
        prompt_length: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._policy = policy
        self._prompt_length = prompt_length
        self._prompt: list[Ids] = []
        self._num_prompt = 0
        self._blocks: deque[_Block] = deque()
        self._num_buffered = 0  # tokens in the blocks
        self._num_content = 0  # tokens of the text so far
        self._extent = Span(0, 0)  # from the first to the last character of the tokens so far

    @property
    def num_tokens(self) -> int:
        """Tokens of the text so far, with its special tokens and its prompt."""
        return self._tokenizer.num_special + self._num_prompt + self._num_content

    def take(self, ids: Ids, offsets: Offsets | None) -> None:
        if offsets is not None and self._prompt_length:
            ids, offsets = self._without_prompt(ids, offsets)
        if len(ids) == 0:
            return
        if offsets is not None:
            start = self._extent.start if self._num_content else int(offsets[:, 0].min())
            self._extent = Span(start, int(offsets[:, 1].max()))
        self._num_content += len(ids)
        if self._policy == "start" or self._num_buffered <= self._room:
            self._blocks.append(_Block(ids, offsets))
            self._num_buffered += len(ids)
        if self._policy == "start":
            # Keep one token more than fits: it shows where the dropped part ends.
            while self._num_buffered - len(self._blocks[0].ids) > max(self._room, 0):
                self._num_buffered -= len(self._blocks.popleft().ids)

    def check_fits(self, *, has_ended: bool) -> None:
        if self._policy == "error" and self.num_tokens > self._max_tokens:
            raise too_long(self.num_tokens, self._max_tokens, "text", has_ended=has_ended)

    def result(self) -> Truncated:
        self.check_fits(has_ended=True)
        ids = np.concatenate([np.zeros(0, dtype=np.int32), *(block.ids for block in self._blocks)])
        offsets = self._offsets()
        if self._num_content <= self._room:
            return Truncated(self._encoded(ids, offsets), self.num_tokens, None)
        if self._room < 1:
            needed = self._max_tokens - self._room + 1
            raise InvalidInput(
                f"a limit of {self._max_tokens} tokens leaves no room for text; "
                f"at least {needed} are needed",
                code="limit_too_small",
                param="max_tokens",
                limit=needed,
                actual=self._max_tokens,
            )
        first = self._num_buffered - self._room if self._policy == "start" else 0
        fit = slice(first, first + self._room)
        dropped = None
        if offsets is not None and self._policy == "start":
            dropped = Span(self._extent.start, int(offsets[: fit.start, 1].max()))
        elif offsets is not None:
            dropped = Span(int(offsets[fit.stop :, 0].min()), self._extent.end)
        fitting = None if offsets is None else offsets[fit]
        return Truncated(self._encoded(ids[fit], fitting), self.num_tokens, dropped)

    @property
    def _room(self) -> int:
        """Content tokens that fit beside the special tokens and the prompt."""
        return self._max_tokens - self._tokenizer.num_special - self._num_prompt

    def _without_prompt(self, ids: Ids, offsets: Offsets) -> _Block:
        """Moves the prompt's tokens out. A token that is part of both belongs to the text."""
        num_prompt = 0
        if self._num_content == 0:
            num_prompt = int(np.count_nonzero(offsets[:, 1] <= self._prompt_length))
            self._prompt.append(ids[:num_prompt])
            self._num_prompt += num_prompt
        of_text = np.maximum(offsets[num_prompt:] - np.int32(self._prompt_length), 0)
        return _Block(ids[num_prompt:], of_text)

    def _offsets(self) -> Offsets | None:
        found = [block.offsets for block in self._blocks if block.offsets is not None]
        if len(found) < len(self._blocks):
            return None
        offsets: Offsets = np.concatenate([np.zeros((0, 2), dtype=np.int32), *found])
        return offsets

    def _encoded(self, content: Ids, offsets: Offsets | None) -> Encoded:
        tokenizer = self._tokenizer
        before = np.concatenate([tokenizer.prefix_ids, *self._prompt])
        ids = np.concatenate([before, content, tokenizer.suffix_ids])
        if offsets is None:
            return Encoded(ids, len(before), tokenizer.num_suffix, None, self._num_prompt)
        rows = np.zeros((len(ids), 2), dtype=np.int32)
        rows[len(before) : len(before) + len(content)] = offsets
        return Encoded(ids, len(before), tokenizer.num_suffix, lambda: rows, self._num_prompt)


_OR_TRUNCATE = ", or allow it to be cut (truncate)"


@contextmanager
def never_truncated() -> Iterator[None]:
    """Takes the advice to truncate from errors raised inside: not every call can."""
    try:
        yield
    except TextTooLong as error:
        raise TextTooLong(
            error.message.removesuffix(_OR_TRUNCATE),
            param=error.param,
            limit=error.limit,
            actual=error.actual,
        ) from None


def too_long(
    num_tokens: int, max_tokens: int, param: str | None, *, has_ended: bool = True
) -> TextTooLong:
    """The error for a text over the limit, which may not have been read to its end."""
    found = f"{num_tokens} tokens, the limit is {max_tokens}"
    if not has_ended:
        found = f"more than {max_tokens} tokens, which is the limit"
    return TextTooLong(
        f"the text has {found}; shorten it{_OR_TRUNCATE}",
        param=param,
        limit=max_tokens,
        actual=num_tokens,
    )
