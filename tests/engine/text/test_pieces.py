"""pieces: whole sentences up to a length, and every character that is not white space in one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InvalidInput
from engine.text.pieces import pieces

TEXTS = st.text(alphabet=" \n\tab.!?日。", max_size=80)


def cut(text: str, most: int) -> list[str]:
    return [text[start:end] for start, end in pieces(text, most)]


def test_sentences_stay_whole_where_they_fit() -> None:
    text = "One is short. Two is, too. A third that is much longer than the others. End."
    assert cut(text, 30) == [
        "One is short. Two is, too. ",
        "A third that is much longer ",
        "than the others. End.",
    ]
    assert cut(text, 1000) == [text]
    assert cut("  one. two.  ", 7) == ["one. ", "two.  "]


def test_a_word_that_is_too_long_is_cut() -> None:
    assert cut("abcdefgh ij", 3) == ["abc", "def", "gh ", "ij"]


@settings(deadline=None)
@given(text=TEXTS, most=st.integers(1, 20))
def test_nothing_but_white_space_is_lost(text: str, most: int) -> None:
    found = pieces(text, most)
    covered = [at for start, end in found for at in range(start, end)]
    assert covered == sorted(set(covered))
    assert all(text[start:end].strip() and end - start <= most for start, end in found)
    lost = set(range(len(text))) - set(covered)
    assert not "".join(text[at] for at in lost).strip()


def test_a_length_that_is_none() -> None:
    with pytest.raises(InvalidInput) as caught:
        pieces("a", 0)
    assert (caught.value.param, caught.value.limit, caught.value.actual) == ("max_characters", 1, 0)
