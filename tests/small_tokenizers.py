"""Tokenizers of a few sentences, the same in every run: the trainers break ties by chance."""

from __future__ import annotations

import json
import re
from collections import Counter

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = (
    "the quick brown fox jumps over the lazy dog while seven wizards box",
    "attention over long documents costs the square of their length",
    "every passage is read once and then remembered by all the others",
    "Numbers 0 1 2 3 4 5 6 7 8 9, marks . , ; : ! ? ( ) and quotes ' \"",
)

BERT_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def _wordpiece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(_pieces(200), unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def _pieces(vocab_size: int) -> dict[str, int]:
    """Every character, at the beginning of a word and within, and the most frequent beginnings and
    ends of words."""
    words = re.findall(r"\w+|[^\w\s]", " ".join(CORPUS).lower())
    alphabet = sorted(set("".join(words)))
    counts = Counter(
        piece
        for word in words
        for cut in range(2, len(word) + 1)
        for piece in (word[:cut], f"##{word[-cut:]}")
    )
    frequent = sorted(counts, key=lambda piece: (-counts[piece] * len(piece), piece))
    characters = [*alphabet, *(f"##{character}" for character in alphabet)]
    pieces = dict.fromkeys([*BERT_SPECIALS, *characters, *frequent])
    return {piece: number for number, piece in enumerate(list(pieces)[:vocab_size])}


ROBERTA_SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def _byte_level_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=350,
            special_tokens=ROBERTA_SPECIALS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    return tokenizer


def _unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(
            vocab_size=150,
            special_tokens=ROBERTA_SPECIALS,
            unk_token="<unk>",
            show_progress=False,
        ),
    )
    tokenizer.model = _in_order(tokenizer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return tokenizer


def _in_order(trained: Tokenizer) -> models.Unigram:
    """Its pieces by their scores, and by their text where they score alike."""
    model = json.loads(trained.to_str())["model"]
    specials: list[tuple[str, float]] = []
    pieces: list[tuple[str, float]] = []
    for piece, score in model["vocab"]:
        scored = (piece, round(score, 3))
        (specials if piece in ROBERTA_SPECIALS else pieces).append(scored)
    pieces.sort(key=lambda scored: (-scored[1], scored[0]))
    return models.Unigram([*specials, *pieces], unk_id=model["unk_id"])


BUILD_TOKENIZER = {
    "wordpiece": _wordpiece,
    "byte_level_bpe": _byte_level_bpe,
    "unigram": _unigram,
}


def tokenizer_config(kind: str) -> dict[str, str]:
    names = ("cls_token", "pad_token", "sep_token", "unk_token", "mask_token")
    contents = ROBERTA_SPECIALS
    if kind == "wordpiece":
        contents = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    return {"tokenizer_class": "PreTrainedTokenizerFast", **dict(zip(names, contents, strict=True))}
