"""Real text for masked language models: word pieces, windows and masks.

The pieces are those of a byte-level BPE that is trained on the training part, as RoBERTa's. The
documents of a part follow each other, a separator between two, and windows are cut anywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Generator, Tensor

from engine.errors import InvalidInput
from engine.experiments.tasks.task import UNASKED, Part
from engine.experiments.tasks.text_sources import parts_of

SEPARATOR, MASK = 0, 1
_SPECIAL = ["<s>", "<mask>"]
_MASKED_SHARE = 0.15
_KEPT, _REPLACED = 0.1, 0.1  # of those, as in BERT


class Masked(NamedTuple):
    inputs: Tensor  # [B, N]
    targets: Tensor  # [B, N] the piece, or UNASKED


@dataclass(frozen=True, kw_only=True)
class TextSource:
    corpora: tuple[str, ...]
    vocabulary: int
    length: int

    def pieces(self, part: Part) -> Tensor:
        """All pieces of a part: [T]."""
        return _encoded(self.corpora, self.vocabulary)[part]

    def digest(self) -> str:
        """A hash of all pieces, and so of the corpora and the tokenizer."""
        hashed = hashlib.sha256()
        for pieces in _encoded(self.corpora, self.vocabulary).values():
            hashed.update(pieces.numpy().tobytes())
        return hashed.hexdigest()

    def check(self) -> None:
        for part, pieces in _encoded(self.corpora, self.vocabulary).items():
            if len(pieces) <= self.length:
                raise InvalidInput(
                    f"{' and '.join(self.corpora)} have {len(pieces)} tokens for {part}; a window "
                    f"takes {self.length + 1}",
                    code="too_little_text",
                    limit=self.length + 1,
                    actual=len(pieces),
                )

    def draw(self, count: int, generator: Generator, part: Part) -> Masked:
        pieces = self.pieces(part)
        starts = torch.randint(len(pieces) - self.length, (count, 1), generator=generator)
        return self.mask(pieces[starts + torch.arange(self.length)], generator)

    def mask(self, tokens: Tensor, generator: Generator) -> Masked:
        """Asks for 15 % of the pieces: 80 % of them masked, 10 % replaced, 10 % as they are."""
        chosen = torch.rand(tokens.shape, generator=generator) < _MASKED_SHARE
        chosen &= tokens != SEPARATOR
        fate = torch.rand(tokens.shape, generator=generator)
        others = torch.randint(len(_SPECIAL), self.vocabulary, tokens.shape, generator=generator)
        inputs = torch.where(chosen & (fate >= _KEPT + _REPLACED), MASK, tokens)
        inputs = torch.where(chosen & (fate < _REPLACED), others, inputs)
        return Masked(inputs, torch.where(chosen, tokens, UNASKED))


@cache
def _encoded(corpora: tuple[str, ...], vocabulary: int) -> Mapping[Part, Tensor]:
    parts = [parts_of(corpus) for corpus in corpora]
    texts: dict[Part, list[str]] = {
        part: [document.body for one in parts for document in one[part]] for part in parts[0]
    }
    tokenizer = _trained(texts["training"], vocabulary)
    return {part: _joined(tokenizer, found) for part, found in texts.items()}


def _trained(texts: Sequence[str], vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _joined(tokenizer: Tokenizer, texts: Sequence[str]) -> Tensor:
    pieces: list[int] = []
    for encoding in tokenizer.encode_batch(list(texts)):
        pieces += encoding.ids
        pieces.append(SEPARATOR)
    return torch.tensor(pieces)
