"""truncate: dropped text is reported, and special tokens stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import InvalidInput, TextTooLong
from engine.text.encoded import Encoded
from engine.text.tokenizer import TextTokenizer
from engine.text.truncation import truncate
from engine.types import Truncate

TEXT = "one twö three four 😀 six"


@pytest.fixture
def tokenizer(minilm_folder: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(minilm_folder)


@pytest.fixture(params=[False, True], ids=["offsets later", "offsets now"])
def encoded(request: pytest.FixtureRequest, tokenizer: TextTokenizer) -> Encoded:
    return tokenizer.encode_batch([TEXT], with_offsets=request.param)[0]


@pytest.mark.parametrize("policy", ["error", "start", "end"])
def test_text_that_fits_is_left_alone(
    encoded: Encoded, tokenizer: TextTokenizer, policy: Truncate
) -> None:
    limit = encoded.num_tokens
    kept, _, dropped = truncate(encoded, tokenizer, max_tokens=limit, policy=policy)
    assert kept is encoded
    assert dropped is None


def test_refusal_names_limit_and_actual(encoded: Encoded, tokenizer: TextTokenizer) -> None:
    with pytest.raises(TextTooLong) as caught:
        truncate(encoded, tokenizer, max_tokens=5, param="input[2]")
    error = caught.value
    assert (error.code, error.param) == ("text_too_long", "input[2]")
    assert (error.limit, error.actual) == (5, 8)


def test_end_is_dropped(encoded: Encoded, tokenizer: TextTokenizer) -> None:
    kept, _, dropped = truncate(encoded, tokenizer, max_tokens=5, policy="end")
    assert tokenizer.tokens_of(kept.ids) == ("[CLS]", "one", "two", "three", "[SEP]")
    assert dropped is not None
    assert TEXT[slice(*dropped)] == "four 😀 six"
    assert kept.offsets.tolist() == [[0, 0], [0, 3], [4, 7], [8, 13], [0, 0]]
    assert kept.num_content == 3


def test_start_is_dropped(encoded: Encoded, tokenizer: TextTokenizer) -> None:
    kept, _, dropped = truncate(encoded, tokenizer, max_tokens=4, policy="start")
    assert tokenizer.tokens_of(kept.ids) == ("[CLS]", "[UNK]", "six", "[SEP]")
    assert dropped is not None
    assert TEXT[slice(*dropped)] == "one twö three four"
    assert [TEXT[start:end] for start, end in kept.offsets[1:-1]] == ["😀", "six"]
    assert (kept.num_prefix, kept.num_content, kept.num_suffix) == (1, 2, 1)


def test_token_input_has_no_characters_to_report(tokenizer: TextTokenizer) -> None:
    encoded = tokenizer.encode_ids(range(2000, 2010))
    kept, num_tokens, dropped = truncate(encoded, tokenizer, max_tokens=4, policy="start")
    assert num_tokens == 12
    assert kept.ids.tolist() == [101, 2008, 2009, 102]
    assert dropped is None


@pytest.mark.parametrize("policy", ["start", "end"])
def test_limit_without_room_for_text(
    encoded: Encoded, tokenizer: TextTokenizer, policy: Truncate
) -> None:
    with pytest.raises(InvalidInput) as caught:
        truncate(encoded, tokenizer, max_tokens=2, policy=policy)
    assert (caught.value.code, caught.value.limit) == ("limit_too_small", 3)
