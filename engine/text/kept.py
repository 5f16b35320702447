"""The tokens of one text that a model can read; of those beyond, how many and where."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from engine.text.tokenizer import Encoded, TextTokenizer
from engine.text.truncation import check_room, too_long
from engine.types import Ids, Offsets, Span, Truncate


class Fitted(NamedTuple):
    """A text within a model's limit."""

    encoded: Encoded
    num_tokens: int  # of the whole text
    dropped: Span | None  # characters


class _Block(NamedTuple):
    ids: Ids
    offsets: Offsets | None


class KeptTokens:
    """Takes the tokens of a prompt and a text in their order, and forgets those that do not fit.

    Offsets, which only truncation and prompts make necessary, come to count from the text behind
    the prompt. The prompt is never dropped.
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
        self._num_held = 0
        self._num_content = 0
        self._content = Span(0, 0)  # from the first to the last character of the tokens so far

    @property
    def num_tokens(self) -> int:
        """Of the text so far, with its special tokens and its prompt."""
        return self._tokenizer.num_special + self._num_prompt + self._num_content

    def take(self, ids: Ids, offsets: Offsets | None) -> None:
        block = _Block(ids, offsets)
        if offsets is not None and self._prompt_length:
            block = self._without_prompt(ids, offsets)
        if len(block.ids) == 0:
            return
        self._note_place(block.offsets)
        self._num_content += len(block.ids)
        if self._policy == "start" or self._num_held <= self._room:
            self._blocks.append(block)
            self._num_held += len(block.ids)
        if self._policy == "start":
            self._forget_start()

    def check_fits(self, *, has_ended: bool) -> None:
        if self._policy == "error" and self.num_tokens > self._max_tokens:
            raise too_long(self.num_tokens, self._max_tokens, "text", has_ended=has_ended)

    def fitted(self) -> Fitted:
        self.check_fits(has_ended=True)
        ids = np.concatenate([np.zeros(0, dtype=np.int32), *(block.ids for block in self._blocks)])
        offsets = self._offsets()
        if self._num_content <= self._room:
            return Fitted(self._encoded(ids, offsets), self.num_tokens, None)
        check_room(self._room, self._max_tokens)
        first = self._num_held - self._room if self._policy == "start" else 0
        kept = slice(first, first + self._room)
        cut = None if offsets is None else offsets[kept]
        return Fitted(self._encoded(ids[kept], cut), self.num_tokens, self._dropped(offsets, kept))

    @property
    def _room(self) -> int:
        """Content tokens that fit."""
        return self._max_tokens - self._tokenizer.num_special - self._num_prompt

    def _without_prompt(self, ids: Ids, offsets: Offsets) -> _Block:
        """What reaches beyond the prompt; a token may be part of both, and is the text's."""
        num_prompt = 0
        if self._num_content == 0:
            num_prompt = int(np.count_nonzero(offsets[:, 1] <= self._prompt_length))
            self._prompt.append(ids[:num_prompt])
            self._num_prompt += num_prompt
        of_text = np.maximum(offsets[num_prompt:] - np.int32(self._prompt_length), 0)
        return _Block(ids[num_prompt:], of_text)

    def _note_place(self, offsets: Offsets | None) -> None:
        if offsets is not None:
            start = self._content.start if self._num_content else int(offsets[0, 0])
            self._content = Span(start, int(offsets[:, 1].max()))

    def _forget_start(self) -> None:
        """Keep one token more than fits: it shows where what was dropped ends."""
        while self._num_held - len(self._blocks[0].ids) > max(self._room, 0):
            self._num_held -= len(self._blocks.popleft().ids)

    def _offsets(self) -> Offsets | None:
        found = [block.offsets for block in self._blocks if block.offsets is not None]
        if len(found) < len(self._blocks):
            return None
        offsets: Offsets = np.concatenate([np.zeros((0, 2), dtype=np.int32), *found])
        return offsets

    def _dropped(self, offsets: Offsets | None, kept: slice) -> Span | None:
        if offsets is None:
            return None
        if self._policy == "start":
            return Span(self._content.start, int(offsets[: kept.start, 1].max()))
        return Span(int(offsets[kept.stop, 0]), self._content.end)

    def _encoded(self, content: Ids, offsets: Offsets | None) -> Encoded:
        tokenizer = self._tokenizer
        before = np.concatenate([tokenizer.prefix_ids, *self._prompt])
        ids = np.concatenate([before, content, tokenizer.suffix_ids])
        if offsets is None:
            return Encoded(ids, len(before), tokenizer.num_suffix, None, self._num_prompt)
        rows = np.zeros((len(ids), 2), dtype=np.int32)
        rows[len(before) : len(before) + len(content)] = offsets
        return Encoded(ids, len(before), tokenizer.num_suffix, lambda: rows, self._num_prompt)
