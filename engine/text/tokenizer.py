"""Turns text into token ids, with the characters that each token stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import (
    Encoding,
    Tokenizer,
    models,
    normalizers,
)

from engine.errors import InvalidInput
from engine.steps import Steps, finish
from engine.text.encoded import Encoded, no_offsets
from engine.text.special_tokens import special_ids
from engine.text.split_points import choose_splitter
from engine.text.streaming import (
    PART_CHARACTERS,
    READ_CHARACTERS,
    TakeTokens,
    TokenStream,
    offsets_array,
    read_pieces,
)
from engine.text.tokenizer_files import read_tokenizer
from engine.text.unicode import check_unicode
from engine.text.vocabulary import Vocabulary
from engine.types import Ids, Offsets

_SHORT_TEXT = 4096
"""A single text of up to this many characters is encoded on the calling thread: that is faster
than the library's thread pool."""

_LONG_TEXT = 2 * PART_CHARACTERS
"""A text of more characters is encoded in parts."""


class TextTokenizer:
    """A checkpoint's tokenizer, without truncation and padding.

    Batches are encoded in parallel and release the GIL. TOKENIZERS_PARALLELISM, the library's own
    switch for that, is respected; unset means parallel.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self._vocabulary = Vocabulary(vocabulary)
        self.prefix_ids, self.suffix_ids = special_ids(tokenizer, vocabulary)
        self._splitter = choose_splitter(tokenizer)

    @classmethod
    def from_folder(cls, folder: Path, *, lowercase: bool = False) -> TextTokenizer:
        """Reads tokenizer.json or, for BERT, vocab.txt.

        `lowercase` is sentence-transformers' `do_lower_case`. It is applied before the tokenizer's
        own normaliser.
        """
        tokenizer = read_tokenizer(folder)
        if lowercase:
            own = tokenizer.normalizer
            steps = [normalizers.Lowercase(), *([own] if own else [])]
            tokenizer.normalizer = normalizers.Sequence(steps)
        return cls(tokenizer)

    @property
    def vocab_size(self) -> int:
        return self._vocabulary.size

    @property
    def num_prefix(self) -> int:
        return len(self.prefix_ids)

    @property
    def num_suffix(self) -> int:
        return len(self.suffix_ids)

    @property
    def num_special(self) -> int:
        return self.num_prefix + self.num_suffix

    def encode_batch(self, texts: Sequence[str], *, with_offsets: bool = False) -> list[Encoded]:
        """Encodes whole texts.

        Set `with_offsets` if offsets will be needed: they take half as much time again, while
        reading them later encodes the text a second time.
        """
        return finish(self.encode_steps(texts, with_offsets=with_offsets))

    def encode_steps(
        self,
        texts: Sequence[str],
        *,
        with_offsets: bool = False,
        check: Callable[[int, int], None] = lambda index, num_tokens: None,
    ) -> Steps[list[Encoded]]:
        """The same in steps of some tens of milliseconds.

        `check` is called while long texts are read, with the index of the text and its tokens so
        far. It raises to stop reading.
        """
        of_short: list[Encoded] = []
        for batch in _in_batches([text for text in texts if not _is_long(text)]):
            of_short += self._encode_short(batch, with_offsets)
            yield
        remaining = iter(of_short)
        encoded: list[Encoded] = []
        for index, text in enumerate(texts):
            if _is_long(text):
                check_of_text = partial(check, index)
                encoded.append((yield from self._encode_long(text, with_offsets, check_of_text)))
            else:
                encoded.append(next(remaining))
        return encoded

    def stream(self, take: TakeTokens, *, with_offsets: bool) -> TokenStream:
        """Reads a text that arrives in pieces; `take` receives its tokens, without special ones."""
        tokenize = partial(self._run, special_tokens=False)
        return TokenStream(tokenize, self._splitter, take, with_offsets=with_offsets)

    def encode_ids(self, ids: Sequence[int] | Ids, *, param: str | None = None) -> Encoded:
        """Checks token ids and adds special tokens, unless they are there already."""
        content = self.validate_ids(ids, param=param)
        if not self._has_special_tokens(content):
            content = self.between_special(content)
        return Encoded(content, self.num_prefix, self.num_suffix, read_offsets=None)

    def between_special(self, content: Ids) -> Ids:
        """The content with special tokens around it."""
        return np.concatenate([self.prefix_ids, content, self.suffix_ids])

    def validate_ids(self, ids: Sequence[int] | Ids, *, param: str | None = None) -> Ids:
        """The ids as an array. Raises if one is not in the vocabulary, or can only be another
        tokenizer's."""
        return self._vocabulary.checked_ids(ids, param=param)

    def decode(self, ids: Ids, *, skip_special_tokens: bool) -> str:
        """The text of checked ids, as the tokenizer joins them."""
        # The library lets other threads run during a batch only.
        [text] = self._tokenizer.decode_batch([ids.tolist()], skip_special_tokens)
        return str(text)

    def tokens_of(self, ids: Iterable[int]) -> tuple[str, ...]:
        """The written form of each id."""
        return tuple(self._tokenizer.id_to_token(int(token_id)) or "" for token_id in ids)

    def _encode_short(self, texts: Sequence[str], with_offsets: bool) -> list[Encoded]:
        encodings = self._run(texts, with_offsets=with_offsets)
        if with_offsets:
            # Converted at once: the library's object is many times larger than the arrays.
            return [self._encoded(_ids(item), _constant(offsets_array(item))) for item in encodings]
        return [
            self._encoded(_ids(encoding), partial(self._read_offsets, text))
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def _encode_long(
        self, text: str, with_offsets: bool, check: Callable[[int], None]
    ) -> Steps[Encoded]:
        """Encodes a text in parts: parallel, and without one large library object for the whole."""
        ids: list[Ids] = [self.prefix_ids]
        offsets: list[Offsets] = [no_offsets(self.num_prefix)]
        num_tokens = self.num_special

        def take(part: Ids, part_offsets: Offsets | None) -> None:
            nonlocal num_tokens
            num_tokens += len(part)
            ids.append(part)
            if part_offsets is not None:
                offsets.append(part_offsets)

        check_unicode(text, "input 0")
        stream = self.stream(take, with_offsets=with_offsets)
        for piece in read_pieces(text):
            stream.feed(piece)
            check(num_tokens)
            yield
        stream.finish()
        ids.append(self.suffix_ids)
        if not with_offsets:
            return self._encoded(np.concatenate(ids), partial(self._read_offsets, text))
        offsets.append(no_offsets(self.num_suffix))
        return self._encoded(np.concatenate(ids), _constant(np.concatenate(offsets)))

    def _run(
        self, texts: Sequence[str], *, with_offsets: bool, special_tokens: bool = True
    ) -> list[Encoding]:
        tokenizer = self._tokenizer
        encode = tokenizer.encode_batch if with_offsets else tokenizer.encode_batch_fast
        try:
            if len(texts) == 1 and len(texts[0]) <= _SHORT_TEXT:
                return [tokenizer.encode(texts[0], add_special_tokens=special_tokens)]
            return encode(list(texts), add_special_tokens=special_tokens)
        except TypeError:
            _check_strings(texts)
            raise

    def _encoded(self, ids: Ids, read_offsets: Callable[[], Offsets]) -> Encoded:
        return Encoded(ids, self.num_prefix, self.num_suffix, read_offsets)

    def _read_offsets(self, text: str) -> Offsets:
        return self.encode_batch([text], with_offsets=True)[0].offsets

    def _has_special_tokens(self, ids: Ids) -> bool:
        return (
            len(ids) >= self.num_special
            and np.array_equal(ids[: self.num_prefix], self.prefix_ids)
            and np.array_equal(ids[len(ids) - self.num_suffix :], self.suffix_ids)
        )


def start_parallel_threads() -> None:
    """Starts the library's threads, which all tokenizers of the process share."""
    Tokenizer(models.WordLevel({"": 0}, unk_token="")).encode_batch(["", ""])


def _is_long(text: object) -> bool:
    return _num_characters(text) > _LONG_TEXT


def _num_characters(text: object) -> int:
    return len(text) if isinstance(text, str) else 0


def _in_batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Neighbours with about as many characters together as are tokenised in one go."""
    start = num_characters = 0
    for index, text in enumerate(texts):
        num_characters += _num_characters(text)
        if num_characters >= READ_CHARACTERS:
            yield texts[start : index + 1]
            start, num_characters = index + 1, 0
    if start < len(texts):
        yield texts[start:]


def _ids(encoding: Encoding) -> Ids:
    return np.array(encoding.ids, dtype=np.int32)


def _constant(offsets: Offsets) -> Callable[[], Offsets]:
    return lambda: offsets


def _check_strings(texts: Sequence[str]) -> None:
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            kind = type(text).__name__
            message = f"input {index} must be a string, got {kind}"
            raise InvalidInput(message, code="invalid_type", actual=kind)
        check_unicode(text, f"input {index}")
