"""Text to token ids, with the characters each token stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer, normalizers

from engine.checkpoint.json_file import missing_file
from engine.errors import CheckpointError, InvalidInput
from engine.text.wordpiece import wordpiece_from_vocabulary

_SHORT_TEXT = 4096
"""Characters that are sooner encoded here than handed to the library's threads."""

Ids = NDArray[np.int32]
Offsets = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Encoded:
    """One text as the model reads it: special tokens, content, special tokens."""

    ids: Ids  # [num_tokens]
    num_prefix: int
    num_suffix: int
    read_offsets: Callable[[], Offsets] | None
    """Works the offsets out; None for token input, which has no characters."""

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def num_content(self) -> int:
        return len(self.ids) - self.num_prefix - self.num_suffix

    @property
    def has_characters(self) -> bool:
        return self.read_offsets is not None

    @cached_property
    def offsets(self) -> Offsets:
        """[num_tokens, 2] characters of the original text; (0, 0) for special tokens.

        Worked out when first asked for, since most embeddings never need it.
        """
        if self.read_offsets is None:
            return np.zeros((len(self.ids), 2), dtype=np.int32)
        return self.read_offsets()

    @property
    def special_mask(self) -> NDArray[np.bool_]:
        """[num_tokens] True for the special tokens put around the content."""
        mask = np.zeros(len(self.ids), dtype=np.bool_)
        mask[: self.num_prefix] = True
        mask[len(self.ids) - self.num_suffix :] = True
        return mask


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
        if with_offsets:
            return [self._with_offsets(encoding) for encoding in self._run(texts, fast=False)]
        encodings = self._run(texts, fast=True)
        return [
            self._encoded(encoding, partial(self._read_offsets, text))
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def encode_ids(self, ids: Sequence[int] | Ids, *, param: str | None = None) -> Encoded:
        """Takes token ids as they are, inside the special tokens unless they bring their own."""
        content = self.validate_ids(ids, param=param)
        if not self._brings_special_tokens(content):
            content = np.concatenate([self.prefix_ids, content, self.suffix_ids])
        return Encoded(content, self.num_prefix, self.num_suffix, read_offsets=None)

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

    def _run(self, texts: Sequence[str], *, fast: bool) -> list[Encoding]:
        encode = self._tokenizer.encode_batch_fast if fast else self._tokenizer.encode_batch
        try:
            if len(texts) == 1 and len(texts[0]) <= _SHORT_TEXT:
                return [self._tokenizer.encode(texts[0])]
            return encode(list(texts))
        except TypeError:
            raise _unencodable(texts) from None

    def _encoded(self, encoding: Encoding, read_offsets: Callable[[], Offsets]) -> Encoded:
        ids = np.array(encoding.ids, dtype=np.int32)
        return Encoded(ids, self.num_prefix, self.num_suffix, read_offsets)

    def _with_offsets(self, encoding: Encoding) -> Encoded:
        # Kept as an array at once: the library's object is many times larger.
        offsets = _offsets_array(encoding)
        return self._encoded(encoding, lambda: offsets)

    def _read_offsets(self, text: str) -> Offsets:
        return _offsets_array(self._run([text], fast=False)[0])

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


def _offsets_array(encoding: Encoding) -> Offsets:
    pairs = encoding.offsets
    flat = np.fromiter(chain.from_iterable(pairs), dtype=np.int32, count=2 * len(pairs))
    return flat.reshape(-1, 2)


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


def _unencodable(texts: Sequence[str]) -> InvalidInput:
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            kind = type(text).__name__
            message = f"input {index} must be a string, got {kind}"
            return InvalidInput(message, code="invalid_type", actual=kind)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return InvalidInput(
                f"input {index} has a lone surrogate at character {error.start}",
                code="invalid_unicode",
                actual=f"U+{ord(text[error.start]):04X}",
            )
    return InvalidInput("the texts cannot be encoded", code="invalid_unicode")
