"""sections: each heading with its text, however headings are written."""

from __future__ import annotations

from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.headings.heading import MAX_TITLE
from engine.text.headings.sections import detect_format, sections
from engine.types import HeadingFormat

MARKDOWN = """---
title: not a heading
---
Before any.

# One #
text
```python
# a comment
```
Two
lines
===
## Sub ##x##
- item
---
#hashtag, no heading

    # code
sub-sub
---
### Deep
"""

HTML = """<!-- <h1>no</h1> --><p>Before</p>
<H1 class="big">One &amp; <b>only</b></H1> text <script>"<h1>no</h1>"</script>
<h3>Deep
 down</h3> x <h2>Sub</h2> y <h1>never closed <h2>Last</h2> z <header>none</header>"""

PLAIN = """=====
Title
=====

Opening words,
IN CAPITALS WITHIN A PARAGRAPH.

NAME
    lln - reads long documents

1. First
--------

2.1 Part of the second

2.1.3 Deeper

1. an item
2. another item

CHAPTER IV

A line that ends in a stop is a paragraph.

ITS TEXT
"""


def found(text: str, form: HeadingFormat) -> list[tuple[str, ...]]:
    return [section.headings for section in sections(text, form)]


def test_markdown() -> None:
    assert found(MARKDOWN, "markdown") == [
        (),
        ("One",),
        ("Two lines",),
        ("Two lines", "Sub ##x##"),
        ("Two lines", "sub-sub"),
        ("Two lines", "sub-sub", "Deep"),
    ]
    starts = [MARKDOWN[section.characters.start :][:5] for section in sections(MARKDOWN, "auto")]
    assert starts == ["---\nt", "# One", "Two\nl", "## Su", "sub-s", "### D"]


@pytest.mark.parametrize("form", ["auto", "markdown"])
def test_a_byte_order_mark_hides_no_heading(form: HeadingFormat) -> None:
    assert found(f"\ufeff{MARKDOWN}", form) == found(MARKDOWN, form)
    assert found("\ufeff# One\n\ntext", form) == [("One",)]


def test_html() -> None:
    assert found(HTML, "html") == [
        (),
        ("One & only",),
        ("One & only", "Deep down"),
        ("One & only", "Sub"),
        ("One & only", "Last"),
    ]


def test_plain() -> None:
    assert found(PLAIN, "plain") == [
        ("Title",),
        ("Title", "NAME"),
        ("Title", "NAME", "1. First"),
        ("Title", "NAME", "1. First", "2.1 Part of the second"),
        ("Title", "NAME", "1. First", "2.1 Part of the second", "2.1.3 Deeper"),
        ("Title", "NAME", "1. First", "CHAPTER IV"),
        ("Title", "ITS TEXT"),
    ]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (MARKDOWN, "markdown"),
        (HTML, "html"),
        (PLAIN, "plain"),
        ("# one comment\n", "markdown"),
        ("x\n# one comment\n", "plain"),
        ("", "plain"),
    ],
)
def test_the_format_is_detected(text: str, form: HeadingFormat) -> None:
    assert detect_format(text) == form
    assert found(text, "auto") == found(text, form)


PARTS = st.sampled_from(
    [
        *("# a", "## b", "===", "---", "```", "~~~", "<h1>", "</h1>", "<h2>c</h2>", "<!--", "-->"),
        *("NAME", "1. One", "2.3 Two", "text", "  ", "\n", "\n\n", "\r\n", "> q", "\u2028", "日"),
    ]
)


@given(
    text=st.lists(PARTS, max_size=40).map("".join),
    form=st.sampled_from(["auto", "markdown", "html", "plain"]),
)
def test_sections_are_the_whole_text_in_order(text: str, form: HeadingFormat) -> None:
    assert "".join(text[slice(*section.characters)] for section in sections(text, form)) == text


@pytest.mark.parametrize(
    "unit", ["<h1>", "<h1 ", "<!--", "#", "# ", "\n", "a\n", "---\n", "=\n", "- -"]
)
def test_time_grows_with_the_length_and_not_its_square(unit: str) -> None:
    started_at = perf_counter()
    for form in ("markdown", "html", "plain"):
        sections(unit * 30_000, form)
    assert perf_counter() - started_at < 5  # a square would take minutes


@pytest.mark.parametrize("text", ["# {}\n", "{}\n===\n", "<h1>{}</h1>"])
def test_a_very_long_title_is_no_title(text: str) -> None:
    form: HeadingFormat = "html" if "<" in text else "markdown"
    short, long = (text.format("x" * length) + "\nbody\n" for length in (MAX_TITLE, MAX_TITLE + 1))
    assert any(section.headings for section in sections(short, form))
    assert not any(section.headings for section in sections(long, form))
