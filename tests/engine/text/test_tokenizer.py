"""TextTokenizer: the same ids as other libraries, and offsets in the original text."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.errors import CheckpointError, InvalidInput
from engine.text.encoded import Encoded
from engine.text.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from tests.conftest import WriteTokenizer

KINDS = ("wordpiece", "byte_level_bpe", "unigram")


@pytest.fixture(scope="module")
def minilm(minilm_folder: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(minilm_folder)


def encode(tokenizer: TextTokenizer, text: str) -> Encoded:
    return tokenizer.encode_batch([text], with_offsets=True)[0]


def content_of(encoded: Encoded) -> slice:
    """The indices of the tokens that are not special."""
    return slice(encoded.num_prefix, encoded.num_tokens - encoded.num_suffix)


def pieces(tokenizer: TextTokenizer, text: str) -> list[str]:
    """The text of each content token."""
    encoded = encode(tokenizer, text)
    content = encoded.offsets[content_of(encoded)].tolist()
    return [text[start:end] for start, end in content]


def test_shipped_truncation_and_padding_are_off(minilm: TextTokenizer) -> None:
    short, long = minilm.encode_batch(["word", "word " * 1000])
    assert short.ids.tolist() == [101, 2773, 102]
    assert long.num_tokens == 1002
    assert long.ids.dtype == np.int32


def test_ids_equal_transformers(minilm: TextTokenizer, minilm_folder: Path) -> None:
    from transformers import AutoTokenizer

    texts = ["Hello, World!", "naïve café 😀", "日本語 text", "a [SEP] b", "x" * 300, "한국어", ""]
    theirs = AutoTokenizer.from_pretrained(minilm_folder)(texts)["input_ids"]
    assert [encoded.ids.tolist() for encoded in minilm.encode_batch(texts)] == theirs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("café naïve", ["café", "naïve"]),
        ("cafe\u0301 x", ["cafe", "x"]),
        ("😀 after", ["😀", "after"]),
        ("👨\u200d👩\u200d👧 family", ["👨\u200d👩\u200d👧", "family"]),
        ("日本 text", ["日", "本", "text"]),
        ("a\0b c", ["a\0b", "c"]),
        ("İstanbul x", ["İstanbul", "x"]),
        ("\ufeffa b", ["a", "b"]),
        ("한 x", ["한", "한", "한", "x"]),
    ],
)
def test_offsets_are_characters_of_the_original(
    minilm: TextTokenizer, text: str, expected: list[str]
) -> None:
    assert pieces(minilm, text) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_of_every_kind(write_tokenizer: WriteTokenizer, kind: str) -> None:
    tokenizer = TextTokenizer.from_folder(write_tokenizer(kind))
    text = "the 😀 naïve dog 日本\0 e\u0301 box"
    encoded = encode(tokenizer, text)
    assert encoded.offsets.shape == (encoded.num_tokens, 2)
    assert not np.delete(encoded.offsets, content_of(encoded), axis=0).any()
    covered = set[int]()
    for start, end in encoded.offsets[content_of(encoded)].tolist():
        assert 0 <= start <= end <= len(text)
        covered.update(range(start, end))
    uncovered = {text[index] for index in range(len(text)) if index not in covered}
    assert uncovered <= {" ", "\0", "\u0301"}  # spaces, and what BERT's normaliser drops


@given(text=st.text(max_size=200))
def test_offsets_stay_inside_the_text_and_in_order(minilm: TextTokenizer, text: str) -> None:
    encoded = encode(minilm, text)
    content = encoded.offsets[1:-1]
    assert (content >= 0).all()
    assert (content <= len(text)).all()
    assert (content[:, 0] <= content[:, 1]).all()
    assert (np.diff(content[:, 0]) >= 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_read_later_are_the_same(write_tokenizer: WriteTokenizer, kind: str) -> None:
    tokenizer = TextTokenizer.from_folder(write_tokenizer(kind))
    texts = ["the quick fox 😀", "", "every passage é"]
    now = tokenizer.encode_batch(texts, with_offsets=True)
    later = tokenizer.encode_batch(texts)
    for one, other in zip(now, later, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.offsets.tolist() == other.offsets.tolist()


@pytest.mark.parametrize(
    ("kind", "prefix", "suffix"),
    [("wordpiece", [2], [3]), ("byte_level_bpe", [0], [2]), ("unigram", [0], [2])],
)
def test_special_tokens(
    write_tokenizer: WriteTokenizer, kind: str, prefix: list[int], suffix: list[int]
) -> None:
    tokenizer = TextTokenizer.from_folder(write_tokenizer(kind))
    assert tokenizer.prefix_ids.tolist() == prefix
    assert tokenizer.suffix_ids.tolist() == suffix
    empty = encode(tokenizer, "")
    assert empty.ids.tolist() == prefix + suffix
    assert empty.num_content == 0


def test_tokenizer_without_special_tokens(write_tokenizer: WriteTokenizer) -> None:
    folder = write_tokenizer("wordpiece")
    plain = json.loads((folder / "tokenizer.json").read_text())
    plain["post_processor"] = None
    (folder / "tokenizer.json").write_text(json.dumps(plain))
    tokenizer = TextTokenizer.from_folder(folder)
    assert tokenizer.num_special == 0
    encoded = encode(tokenizer, "the fox")
    assert encoded.num_content == encoded.num_tokens


def test_encode_ids_adds_special_tokens_once(minilm: TextTokenizer) -> None:
    bare = minilm.encode_ids([7592, 2088])
    assert bare.ids.tolist() == [101, 7592, 2088, 102]
    assert minilm.encode_ids(bare.ids).ids.tolist() == bare.ids.tolist()
    assert minilm.encode_ids([101, 7592]).ids.tolist() == [101, 101, 7592, 102]
    assert not bare.has_characters
    assert bare.offsets.tolist() == [[0, 0]] * 4


@pytest.mark.parametrize("bad", [-1, 30522, 2**31, 2**63, 2**64, -(2**70)])
def test_token_ids_outside_the_vocabulary(minilm: TextTokenizer, bad: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        minilm.validate_ids([5, bad], param="input[3]")
    assert caught.value.code == "invalid_token_id"
    assert caught.value.param == "input[3]"
    if abs(bad) < 2**63:
        assert (caught.value.limit, caught.value.actual) == (30521, bad)
        assert "position 1" in caught.value.message


def test_token_ids_that_the_tokenizer_never_writes(minilm: TextTokenizer) -> None:
    with pytest.raises(InvalidInput, match="check_embedding_ctx_length=False") as caught:
        minilm.encode_ids([9906, 11, 1917], param="input[3]")
    assert (caught.value.code, caught.value.param) == ("foreign_token_ids", "input[3]")
    assert caught.value.actual == 11


@pytest.mark.parametrize(
    "bad",
    [[1.5], ["a"], [[1, 2], [3, 4]], [[1], [2, 3]], [1, [2]], [[]], [True], [5, True]],
)
def test_token_ids_that_are_not_integers(minilm: TextTokenizer, bad: list[int]) -> None:
    with pytest.raises(InvalidInput) as caught:
        minilm.encode_ids(bad)
    assert caught.value.code == "invalid_token_id"


def test_lone_surrogate_is_named(minilm: TextTokenizer) -> None:
    with pytest.raises(InvalidInput) as caught:
        minilm.encode_batch(["fine", "ab\ud800"])
    assert caught.value.code == "invalid_unicode"
    assert "input 1" in caught.value.message
    assert caught.value.actual == "U+D800"


def test_tokens_of(minilm: TextTokenizer) -> None:
    encoded = encode(minilm, "Unbelievable café")
    assert minilm.tokens_of(encoded.ids) == ("[CLS]", "unbelievable", "cafe", "[SEP]")


def test_lowercase_comes_before_the_tokenizers_own_steps(write_tokenizer: WriteTokenizer) -> None:
    folder = write_tokenizer("byte_level_bpe")
    cased = TextTokenizer.from_folder(folder)
    uncased = TextTokenizer.from_folder(folder, lowercase=True)
    assert (
        cased.encode_batch(["The"])[0].ids.tolist() != cased.encode_batch(["the"])[0].ids.tolist()
    )
    assert (
        uncased.encode_batch(["The"])[0].ids.tolist() == cased.encode_batch(["the"])[0].ids.tolist()
    )


def test_vocabulary_file_gives_the_same_tokenizer(minilm_folder: Path, tmp_path: Path) -> None:
    for name in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(minilm_folder / name, tmp_path)
    texts = ["Hello, naïve World!", "日本語 [MASK] x", "a\0b\tc", "unaffable 😀"]
    built = TextTokenizer.from_folder(tmp_path).encode_batch(texts, with_offsets=True)
    shipped = TextTokenizer.from_folder(minilm_folder).encode_batch(texts, with_offsets=True)
    for one, other in zip(built, shipped, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.offsets.tolist() == other.offsets.tolist()


def test_vocabulary_file_without_a_special_token(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\nthe\n")
    (tmp_path / "tokenizer_config.json").write_text('{"cls_token": {"content": "[CLS]"}}')
    with pytest.raises(CheckpointError, match=r"vocab\.txt has no special token \[SEP\]"):
        TextTokenizer.from_folder(tmp_path)


def test_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        TextTokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 3}'])
def test_damaged_tokenizer_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        TextTokenizer.from_folder(tmp_path)


def test_vocabulary_that_drops_unknown_characters(tmp_path: Path) -> None:
    from tokenizers import models

    Tokenizer(models.BPE(vocab={"z": 0}, merges=[])).save(str(tmp_path / "tokenizer.json"))
    tokenizer = TextTokenizer.from_folder(tmp_path)
    assert (tokenizer.vocab_size, tokenizer.num_special) == (1, 0)


def test_a_million_tokens(minilm: TextTokenizer) -> None:
    text = "é word " * 500_000
    encoded = encode(minilm, text)
    assert encoded.num_tokens == 1_000_002
    start, end = encoded.offsets[-2].tolist()
    assert (text[start:end], end) == ("word", len(text) - 1)


def test_the_interpreter_runs_while_a_batch_is_encoded(minilm: TextTokenizer) -> None:
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.wait(0.001):
            ticks += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    minilm.encode_batch(["some words of text " * 20_000])
    done.set()
    ticker.join()
    assert ticks >= 3
