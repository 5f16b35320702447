"""TokenStream: however a text is split, and however long, its tokens are those of the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors

from engine.text import streaming as stream_module
from engine.text.split_points import SpaceSplitter, WordSplitter
from engine.text.tokenizer import TextTokenizer
from engine.types import Ids, Offsets

if TYPE_CHECKING:
    from tests.conftest import WriteTokenizer

KINDS = ("wordpiece", "byte_level_bpe", "unigram")

# Hard cases for splitters: spaces in runs, added tokens, marks in and out of order, characters
# that are dropped, that change their number, or that end words without a space.
AWKWARD = st.sampled_from(
    [
        *(" ", "  ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "\x85"),
        *("\0", "\ufeff", "\u200d", "\ufffd", "[", "]", "[SEP]", "[MASK]", "<mask>", "</s>"),
        *("a", "the", "quick", "fox", "Ab", "x" * 30, "x" * 101, "9", "3.14", "'s", ".", "..."),
        *("é", "e\u0301", "\u0301", "\u0323", "\u0344", "\u302e", "한", "\u1112\u1161"),
        *("İ", "ß", "ﬁ", "½", "≮", "<\u0338", "\u037e", "\u0600", "”", "—", "_", "▁"),
        *("日本", "語。", "😀", "👩\u200d👧", "ก", "ี", "שלום", "क्षि"),
    ]
)
TEXTS = st.lists(st.one_of(AWKWARD, st.text(max_size=5)), max_size=30).map("".join)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads and parts of a few characters, so short texts are split everywhere."""
    monkeypatch.setattr(stream_module, "READ_CHARACTERS", 12)
    monkeypatch.setattr(stream_module, "PART_CHARACTERS", 5)
    monkeypatch.setattr(stream_module, "_LONG_WORD", 50)


@pytest.fixture(scope="module")
def minilm(minilm_folder: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(minilm_folder)


def streamed(tokenizer: TextTokenizer, pieces: Iterator[str] | list[str]) -> tuple[Ids, Offsets]:
    ids: list[Ids] = [np.zeros(0, dtype=np.int32)]
    offsets: list[Offsets] = [np.zeros((0, 2), dtype=np.int32)]

    def take(part: Ids, part_offsets: Offsets | None) -> None:
        ids.append(part)
        assert part_offsets is not None
        offsets.append(part_offsets)

    stream = tokenizer.stream(take, with_offsets=True)
    for piece in pieces:
        stream.feed(piece)
    stream.finish()
    return np.concatenate(ids), np.concatenate(offsets)


def check(tokenizer: TextTokenizer, text: str, size: int) -> None:
    whole = tokenizer._tokenizer.encode(text, add_special_tokens=False)
    ids, offsets = streamed(tokenizer, [text[at : at + size] for at in range(0, len(text), size)])
    assert ids.tolist() == whole.ids
    assert [tuple(pair) for pair in offsets.tolist()] == whole.offsets


@given(text=TEXTS, size=st.integers(1, 20))
@settings(max_examples=300, deadline=None)
def test_the_shipped_tokenizer(minilm: TextTokenizer, text: str, size: int) -> None:
    assert isinstance(minilm._splitter, WordSplitter)
    check(minilm, text, size)


def _bpe(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.add_special_tokens([_added("<mask>", lstrip=True)])


def _xlm(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.Strip(left=False, right=True),
            normalizers.Replace(_regex(" {2,}"), "▁"),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )


def _first(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.normalizer = normalizers.Strip(left=False, right=True)


def _cased(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)


def _ascii_only(tokenizer: Tokenizer) -> None:
    tokenizer.normalizer = normalizers.BertNormalizer(handle_chinese_chars=False, clean_text=False)


def _added(content: str, **flags: bool) -> Any:
    from tokenizers import AddedToken

    return AddedToken(content, **flags)


def _regex(pattern: str) -> Any:
    from tokenizers import Regex

    return Regex(pattern)


VARIANTS: list[tuple[str, Callable[[Tokenizer], None] | None, type]] = [
    ("wordpiece", None, WordSplitter),
    ("wordpiece", _cased, WordSplitter),
    ("wordpiece", _ascii_only, WordSplitter),
    ("byte_level_bpe", None, SpaceSplitter),
    ("byte_level_bpe", _bpe, SpaceSplitter),
    ("unigram", None, SpaceSplitter),
    ("unigram", _xlm, SpaceSplitter),
    ("unigram", _first, SpaceSplitter),
]


@pytest.mark.parametrize(("kind", "change", "splitter"), VARIANTS)
def test_tokenizers_of_every_kind(
    write_tokenizer: WriteTokenizer,
    kind: str,
    change: Callable[[Tokenizer], None] | None,
    splitter: type,
) -> None:
    library = Tokenizer.from_file(str(write_tokenizer(kind) / "tokenizer.json"))
    if change is not None:
        change(library)
    tokenizer = TextTokenizer(library)
    assert isinstance(tokenizer._splitter, splitter)

    @given(text=TEXTS, size=st.integers(1, 20))
    @settings(max_examples=150, deadline=None)
    def agrees(text: str, size: int) -> None:
        check(tokenizer, text, size)

    agrees()
