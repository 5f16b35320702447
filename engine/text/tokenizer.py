"""Text to token ids, with the characters each token stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer, normalizers

from engine.checkpoint.json_file import missing_file
from engine.errors import CheckpointError, InvalidInput
from engine.text.cuts import Cuts, NoCuts, SpaceCuts, allow_space_cuts
from engine.text.stream import PART_CHARACTERS, TakeTokens, TokenStream, offsets_array
from engine.text.word_cuts import WordCuts, allow_word_cuts
from engine.text.wordpiece import wordpiece_from_vocabulary
from engine.types import Ids, Offsets

_SHORT_TEXT = 4096
"""Characters that are sooner encoded here than handed to the library's threads."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """One text as the model reads it: special tokens, content, special tokens."""

    ids: Ids  # [num_tokens]
    num_prefix: int
    num_suffix: int
    read_offsets: Callable[[], Offsets] | None
    """Works the offsets out; None for token input, which has no characters."""

    num_prompt: int = 0
    """Of a prompt, where its tokens are among those in front."""

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def num_content(self) -> int:
        return len(self.ids) - self.num_prefix - self.num_suffix

    @property
    def content(self) -> Ids:
        """The ids without those in front and behind."""
        return self.ids[self.num_prefix : len(self.ids) - self.num_suffix]

    @property
    def has_characters(self) -> bool:
        return self.read_offsets is not None

    @cached_property
    def offsets(self) -> Offsets:
        """[num_tokens, 2] characters of the original text; (0, 0) for special tokens.

        Worked out when first asked for, since most embeddings never need it.
        """
        if self.read_offsets is None:
            return _no_offsets(len(self.ids))
        return self.read_offsets()

    def behind_prompt(self, prompt_length: int) -> Encoded:
        """The same with the tokens of a prompt, of so many characters, among those in front."""
        in_prompt = self.offsets[self.num_prefix :, 1] <= prompt_length
        num_prompt = int(np.count_nonzero(in_prompt[: self.num_content]))
        return replace(self, num_prefix=self.num_prefix + num_prompt, num_prompt=num_prompt)


class TextTokenizer:
    """A checkpoint's tokenizer with nothing cut and nothing padded.

    Batches are encoded in parallel with the interpreter lock released. The library's own switch
    for that, TOKENIZERS_PARALLELISM, is left as the user has it; unset means parallel.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        self.vocab_size = 1 + max(vocabulary.values(), default=-1)
        self.prefix_ids, self.suffix_ids = _special_ids(tokenizer, vocabulary)
        self._cuts = _cuts_of(tokenizer)

    @classmethod
    def from_folder(cls, folder: Path, *, lowercase: bool = False) -> TextTokenizer:
        """Reads tokenizer.json or, for BERT, vocab.txt.

        `lowercase` is sentence-transformers' `do_lower_case`, which is on top of what the tokenizer
        does by itself.
        """
        tokenizer = _read_tokenizer(folder)
        if lowercase:
            own = tokenizer.normalizer
            steps = [normalizers.Lowercase(), *([own] if own else [])]
            tokenizer.normalizer = normalizers.Sequence(steps)
        return cls(tokenizer)

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

        Ask for offsets here if they are sure to be needed: they take half as much time again, but
        reading them later encodes the text once more.
        """
        of_short = iter(self._encode_short([t for t in texts if not _is_long(t)], with_offsets))
        return [
            self._encode_long(text, with_offsets) if _is_long(text) else next(of_short)
            for text in texts
        ]

    def stream(self, take: TakeTokens, *, with_offsets: bool) -> TokenStream:
        """For a text that comes in pieces; its special tokens are not among those it hands on."""
        return TokenStream(
            partial(self._run, special_tokens=False), self._cuts, take, with_offsets=with_offsets
        )

    def encode_ids(self, ids: Sequence[int] | Ids, *, param: str | None = None) -> Encoded:
        """Takes token ids as they are, inside the special tokens unless they bring their own."""
        content = self.validate_ids(ids, param=param)
        if not self._brings_special_tokens(content):
            content = self.between_special(content)
        return Encoded(content, self.num_prefix, self.num_suffix, read_offsets=None)

    def between_special(self, content: Ids) -> Ids:
        """Content as the model reads it."""
        return np.concatenate([self.prefix_ids, content, self.suffix_ids])

    def validate_ids(self, ids: Sequence[int] | Ids, *, param: str | None = None) -> Ids:
        """The ids as an array, if each of them is in the vocabulary."""
        array = _integers(ids, param=param)
        outside = (array < 0) | (array >= self.vocab_size)
        if outside.any():
            position = int(outside.argmax())
            raise InvalidInput(
                f"token id {array[position]} at position {position} is not in the vocabulary, "
                f"whose ids are 0 to {self.vocab_size - 1}",
                code="invalid_token_id",
                param=param,
                limit=self.vocab_size - 1,
                actual=int(array[position]),
            )
        return array.astype(np.int32)

    def tokens_of(self, ids: Iterable[int]) -> tuple[str, ...]:
        """The written form of each id."""
        return tuple(self._tokenizer.id_to_token(int(token_id)) or "" for token_id in ids)

    def _encode_short(self, texts: Sequence[str], with_offsets: bool) -> list[Encoded]:
        encodings = self._run(texts, with_offsets=with_offsets) if texts else []
        if with_offsets:
            # Kept as arrays at once: the library's object is many times larger.
            return [self._encoded(_ids(item), _given(offsets_array(item))) for item in encodings]
        return [
            self._encoded(_ids(encoding), partial(self._read_offsets, text))
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def _encode_long(self, text: str, with_offsets: bool) -> Encoded:
        """A text in parts: in parallel, and without the library's large records of the whole."""
        ids: list[Ids] = [self.prefix_ids]
        offsets: list[Offsets] = [_no_offsets(self.num_prefix)]

        def take(part: Ids, part_offsets: Offsets | None) -> None:
            ids.append(part)
            if part_offsets is not None:
                offsets.append(part_offsets)

        _check_unicode([text])
        stream = self.stream(take, with_offsets=with_offsets)
        stream.feed(text)
        stream.finish()
        ids.append(self.suffix_ids)
        if not with_offsets:
            return self._encoded(np.concatenate(ids), partial(self._read_offsets, text))
        offsets.append(_no_offsets(self.num_suffix))
        return self._encoded(np.concatenate(ids), _given(np.concatenate(offsets)))

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
            _check_unicode(texts)
            raise

    def _encoded(self, ids: Ids, read_offsets: Callable[[], Offsets]) -> Encoded:
        return Encoded(ids, self.num_prefix, self.num_suffix, read_offsets)

    def _read_offsets(self, text: str) -> Offsets:
        return self.encode_batch([text], with_offsets=True)[0].offsets

    def _brings_special_tokens(self, ids: Ids) -> bool:
        return (
            len(ids) >= self.num_special
            and np.array_equal(ids[: self.num_prefix], self.prefix_ids)
            and np.array_equal(ids[len(ids) - self.num_suffix :], self.suffix_ids)
        )


def _read_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if path.exists():
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            message = f"{path} is not a tokenizer this version can read: {error}"
            raise CheckpointError(message, code="invalid_tokenizer", actual=path.name) from error
    if (folder / "vocab.txt").exists():
        return wordpiece_from_vocabulary(folder)
    raise missing_file(path)


def _special_ids(tokenizer: Tokenizer, vocabulary: Iterable[str]) -> tuple[Ids, Ids]:
    """The special tokens before and after any content, read off a sample."""
    sample = next(_samples(tokenizer, vocabulary), None)
    if sample is None:
        raise CheckpointError("the tokenizer has an empty vocabulary", code="invalid_tokenizer")
    mask = np.array(sample.special_tokens_mask, dtype=np.bool_)
    content = np.flatnonzero(~mask)
    first, last = int(content[0]), int(content[-1])
    ids = np.array(sample.ids, dtype=np.int32)
    return ids[:first], ids[last + 1 :]


def _samples(tokenizer: Tokenizer, vocabulary: Iterable[str]) -> Iterator[Encoding]:
    """Encodings that have content: a vocabulary without "a" may drop it."""
    num_special = tokenizer.num_special_tokens_to_add(is_pair=False)
    encodings = (tokenizer.encode(text) for text in chain(["a"], vocabulary))
    return (encoding for encoding in encodings if len(encoding) > num_special)


def _cuts_of(tokenizer: Tokenizer) -> Cuts:
    if allow_word_cuts(tokenizer):
        return WordCuts(tokenizer)
    return SpaceCuts() if allow_space_cuts(tokenizer) else NoCuts()


def _is_long(text: object) -> bool:
    return isinstance(text, str) and len(text) > 2 * PART_CHARACTERS


def _ids(encoding: Encoding) -> Ids:
    return np.array(encoding.ids, dtype=np.int32)


def _given(offsets: Offsets) -> Callable[[], Offsets]:
    return lambda: offsets


def _no_offsets(num_tokens: int) -> Offsets:
    return np.zeros((num_tokens, 2), dtype=np.int32)


def _integers(ids: Sequence[int] | Ids, *, param: str | None) -> NDArray[np.integer[Any]]:
    array: NDArray[Any] = np.asarray(ids)
    if array.size == 0:
        return np.zeros(0, dtype=np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidInput(
            "token ids must be a flat list of integers of at most 64 bits",
            code="invalid_token_id",
            param=param,
        )
    return array


def _check_unicode(texts: Sequence[str]) -> None:
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            kind = type(text).__name__
            message = f"input {index} must be a string, got {kind}"
            raise InvalidInput(message, code="invalid_type", actual=kind)
        if text.isascii():
            continue
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"input {index} has a lone surrogate at character {error.start}",
                code="invalid_unicode",
                actual=f"U+{ord(text[error.start]):04X}",
            ) from None
