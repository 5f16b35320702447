"""Tokenises a text that arrives in pieces, exactly as if it had arrived at once.

Pieces may be cut anywhere, also inside a word. `TokenStream` passes tokens on as soon as no later
piece can change them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Protocol, TypeAlias

import numpy as np
from tokenizers import Encoding

from engine.errors import TextTooLong
from engine.text.split_points import Splitter, WordSplitter
from engine.types import Ids, Offsets, Span

READ_CHARACTERS = 131_072
"""Text collected before it is tokenised: enough parts to keep several cores busy, and so few that
they take some tens of milliseconds."""

PART_CHARACTERS = 16_384
"""Text that one core tokenises at a time."""

_MAX_CHARACTERS = 2**31 - 1  # offsets are int32
_LONG_WORD = 1_024

TakeTokens: TypeAlias = Callable[[Ids, Offsets | None], None]
"""Receives tokens in their order; offsets are None unless they were asked for."""


class Tokenize(Protocol):
    """Encodes texts in parallel, without special tokens."""

    def __call__(self, texts: Sequence[str], *, with_offsets: bool) -> list[Encoding]: ...


class TokenStream:
    """Reads the pieces of one text and passes its tokens to a callback.

    It buffers the text since the last split. A word too long for any vocabulary is not buffered:
    it becomes one unknown token, whatever its rest.
    """

    def __init__(
        self, tokenize: Tokenize, splitter: Splitter, take: TakeTokens, *, with_offsets: bool
    ) -> None:
        self._tokenize = tokenize
        self._splitter = splitter
        self._take = take
        self._with_offsets = with_offsets
        self._long_words = splitter if isinstance(splitter, WordSplitter) else None
        left = splitter.left_context
        self._num_context_tokens = len(tokenize([left], with_offsets=False)[0]) if left else 0
        self._buffer = ""
        self._buffer_start = 0  # its first character's index in the text
        self._new: list[str] = []  # pieces after the buffer, not looked at yet
        self._num_new = 0  # their characters
        self._word: Span | None = None  # an unknown word whose end may not have arrived yet

    @property
    def num_buffered(self) -> int:
        """Characters whose tokens are not known yet."""
        return len(self._buffer) + self._num_new

    def feed(self, text: str) -> None:
        for piece in read_pieces(text):
            self._new.append(piece)
            self._num_new += len(piece)
            # Waiting for as much as is buffered already reads no character more than twice.
            if self._num_new >= max(READ_CHARACTERS, len(self._buffer)):
                self._read()

    def finish(self) -> None:
        self._extend_buffer()
        if self._word is not None:
            self._emit_unknown(self._word)
        self._encode(self._buffer)

    def _read(self) -> None:
        self._extend_buffer()
        if self._word is not None and self._buffer:
            self._emit_unknown(self._word)
        if self._word is None:
            split = self._splitter.last_split(self._buffer)
            self._encode(self._buffer[:split])
            self._discard(split)
            self._find_long_word()

    def _extend_buffer(self) -> None:
        """Appends the new pieces to the buffer, except for the rest of an unknown word."""
        self._buffer += "".join(self._new)
        self._new.clear()
        self._num_new = 0
        if self._buffer_start + len(self._buffer) > _MAX_CHARACTERS:
            raise TextTooLong(
                f"the text has more than {_MAX_CHARACTERS} characters",
                param="text",
                limit=_MAX_CHARACTERS,
                actual=_MAX_CHARACTERS + 1,
            )
        if self._word is not None and self._long_words is not None:
            length, end = self._long_words.rest_of_word(self._buffer)
            if end:
                self._word = Span(self._word.start, self._buffer_start + end)
            self._discard(length)

    def _discard(self, length: int) -> None:
        self._buffer = self._buffer[length:]
        self._buffer_start += length

    def _find_long_word(self) -> None:
        if self._long_words is None or len(self._buffer) < _LONG_WORD:
            return
        word = self._long_words.unknown_word(self._buffer)
        if word is not None:
            self._word = Span(word.start + self._buffer_start, word.end + self._buffer_start)
            self._discard(len(self._buffer))

    def _emit_unknown(self, word: Span) -> None:
        assert self._long_words is not None, "it found the word"
        offsets = np.array([word], dtype=np.int32) if self._with_offsets else None
        self._take(np.array([self._long_words.unknown_id], dtype=np.int32), offsets)
        self._word = None

    def _encode(self, text: str) -> None:
        """Tokenises the text at the start of the buffer, in parts that run in parallel."""
        parts = list(self._parts(text))
        left = self._splitter.left_context
        is_first = self._buffer_start == 0
        contexts = ["" if is_first and index == 0 else left for index in range(len(parts))]
        texts = [context + part for context, part in zip(contexts, parts, strict=True)]
        encodings = self._tokenize(texts, with_offsets=self._with_offsets)
        start = self._buffer_start
        for encoding, context, part in zip(encodings, contexts, parts, strict=True):
            self._emit(encoding, len(context), start)
            start += len(part)

    def _parts(self, text: str) -> Iterator[str]:
        while len(text) > PART_CHARACTERS:
            size = PART_CHARACTERS
            while (split := self._splitter.last_split(text[:size])) == 0 and size < len(text):
                size *= 2
            if split == 0:
                break
            yield text[:split]
            text = text[split:]
        if text:
            yield text

    def _emit(self, encoding: Encoding, context_length: int, start: int) -> None:
        first = self._num_context_tokens if context_length else 0
        ids = np.array(encoding.ids[first:], dtype=np.int32)
        if len(ids) == 0:
            return
        offsets = None
        if self._with_offsets:
            offsets = offsets_array(encoding)[first:] + np.int32(start - context_length)
        self._take(ids, offsets)


def read_pieces(text: str) -> Iterator[str]:
    """The text in pieces that a stream tokenises one at a time."""
    for start in range(0, len(text), READ_CHARACTERS):
        yield text[start : start + READ_CHARACTERS]


def offsets_array(encoding: Encoding) -> Offsets:
    """[tokens, 2]"""
    pairs = encoding.offsets
    flat = np.fromiter(chain.from_iterable(pairs), dtype=np.int32, count=2 * len(pairs))
    return flat.reshape(-1, 2)
