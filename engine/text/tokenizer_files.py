"""Reads a tokenizer from tokenizer.json or, for BERT, builds it from vocab.txt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from engine.checkpoint.json_files import missing_file, read_object
from engine.errors import CheckpointError


def read_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if path.exists():
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            message = f"cannot read the tokenizer in {path}: {error}"
            raise CheckpointError(message, code="invalid_tokenizer", actual=path.name) from error
    if (folder / "vocab.txt").exists():
        return _wordpiece_from_vocabulary(folder)
    raise missing_file(path)


_SPECIAL_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}


def _wordpiece_from_vocabulary(folder: Path) -> Tokenizer:
    """BERT's tokenizer, for folders without tokenizer.json.

    Reads vocab.txt and tokenizer_config.json. Settings that the latter omits have BERT's defaults.
    """
    config = read_object(folder / "tokenizer_config.json")
    names = {
        key: _special_token(config.get(key), default) for key, default in _SPECIAL_TOKENS.items()
    }
    tokenizer = Tokenizer(_word_piece_model(folder / "vocab.txt", unk_token=names["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=bool(config.get("do_lower_case", True)),
        strip_accents=config.get("strip_accents"),
        handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    ids = {key: _id_of(tokenizer, name, folder / "vocab.txt") for key, name in names.items()}
    tokenizer.add_special_tokens(list(names.values()))
    tokenizer.post_processor = processors.BertProcessing(
        (names["sep_token"], ids["sep_token"]), (names["cls_token"], ids["cls_token"])
    )
    return tokenizer


def _word_piece_model(path: Path, *, unk_token: str) -> models.WordPiece:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read {path}: {error}"
        raise CheckpointError(message, code="invalid_tokenizer", actual=path.name) from error
    if lines[-1] == "":
        lines.pop()
    vocabulary = {line.rstrip("\r"): index for index, line in enumerate(lines)}
    return models.WordPiece(vocabulary, unk_token=unk_token, max_input_chars_per_word=100)


def _special_token(token: str | Mapping[str, Any] | None, default: str) -> str:
    """A special token is a string, or an object with its settings."""
    if isinstance(token, Mapping):
        return str(token.get("content", default))
    return token or default


def _id_of(tokenizer: Tokenizer, token: str, path: Path) -> int:
    token_id = tokenizer.token_to_id(token)
    if token_id is None:
        message = f"{path} has no special token {token}"
        raise CheckpointError(message, code="invalid_tokenizer", actual=path.name)
    return token_id
