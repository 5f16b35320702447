"""sentences: they end where people would end them, and no text is lost."""

from __future__ import annotations

from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.sentences import sentences

MARKS = st.sampled_from([*".!?…。！\"”')]([« \n\n\taAz9日本क।؟", "Mr", "e.g", "U.S", "\n\n"])


def split(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


@pytest.mark.parametrize(
    "text",
    [
        "One. | Two! | Three? | Four",
        "Mr. J. R. R. Tolkien met Dr. Who. | They spoke.",
        "He came on Jan. 5 at 5 p.m. | Nobody saw him, e.g. in the U.S. or elsewhere.",
        "It costs 3.14 dollars, see Fig. 2 and No. 7. | I said no. | So do I. | Good.",
        "Apples, pears, etc. are fruit. | Apples, pears, etc. | They are fruit.",
        "Smith et al. (2019) agree. | Others do not.",
        '"Stop!" he cried. | "Why?" she asked. | (So it was.) | He left.',
        "“Go.” | Then he went ... and came back. | Was it ... | Yes.",
        "What?! | No way!!! | Well…",
        "今日は晴れです。|明日は？|「はい。」|終わり。",
        "क्या हाल है? | सब ठीक है। | अच्छा।",
        "كيف حالك؟ | بخير.",
        "A heading without a stop\n\n| A paragraph\nof two lines. | Its end\n \n| Another",
        "1. First things. | Then\n2. second ones",
        "No space.After a stop, version 1.2.3 and a.b.c",
    ],
)
def test_sentences_end_where_people_end_them(text: str) -> None:
    expected = [part.strip() for part in text.split("|")]
    assert split(text.replace("|", "")) == expected


@pytest.mark.parametrize("text", ["", " \n\t\n ", "\u3000"])
def test_white_space_has_no_sentences(text: str) -> None:
    assert sentences(text) == []


@given(text=st.lists(st.one_of(MARKS, st.text(max_size=4)), max_size=40).map("".join))
def test_all_but_white_space_is_in_one_sentence(text: str) -> None:
    end = 0
    for span in sentences(text):
        assert not text[end : span.start].strip()
        sentence = text[span.start : span.end]
        assert sentence == sentence.strip() != ""
        end = span.end
    assert not text[end:].strip()


@pytest.mark.parametrize("unit", [".", ". ", ".)", "\n", " \n", "a.", "Mr. ", '."'])
def test_time_grows_with_the_length_and_not_its_square(unit: str) -> None:
    started_at = perf_counter()
    sentences(unit * 50_000)
    assert perf_counter() - started_at < 5  # a square would take minutes
