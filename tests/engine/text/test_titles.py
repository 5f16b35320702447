"""The title that a text begins with."""

from __future__ import annotations

from time import process_time

import pytest

from engine.text.titles import HEAD_CHARACTERS, MAX_LINE, is_visible, title_span

BODY = "The first sentence of the text says what it is about."


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (f"Ships of the north\n\n{BODY}", "Ships of the north"),
        (f"Ships of the north\r\n\r\n{BODY}", "Ships of the north"),
        (f"\n  \n\tShips of the north \n\n{BODY}", "Ships of the north"),
        (f"Loomings.\n\n{BODY}", "Loomings."),
        (f"Who sailed first?\n\n{BODY}", "Who sailed first?"),
        (f"# Ships\n{BODY}", "Ships"),
        (f"###   Ships of C#\n\n{BODY}", "Ships of C#"),
        (f"Ships\n=====\n{BODY}", "Ships"),
        (f"=======\n Ships\n=======\n\n{BODY}", "Ships"),
        (f"SHIPS\n{BODY}", "SHIPS"),
        (f"1. Ships\n\n{BODY}", "1. Ships"),
        (f"Chapter 1\n\n{BODY}", "Chapter 1"),
        (f"---\nlayout: page\n---\n\n# Ships\n\n{BODY}", "Ships"),
        (f'<!doctype html>\n<body><h1 class="top">Ships</h1>\n<p>{BODY}', "Ships"),
        (f"A longer title\n===\n{BODY}", "A longer title"),
        (f"Ships\n-\n{BODY}", "Ships"),
        (f"## Ships ##\n\n{BODY}", "Ships"),
        (f"\ufeff# Ships\n\n{BODY}", "Ships"),
        (f"\ufeff---\nlayout: page\n---\n\n# Ships\n\n{BODY}", "Ships"),
        (f"\ufeff<h2>Ships</h2>\n<p>{BODY}", "Ships"),
        (f"<h1>İİİstanbul</h1>\n<p>{BODY}", "İİİstanbul"),
        (f"<h1></h1><h2>Ships</h2>\n<p>{BODY}", "Ships"),
        (f'<h1> <a href="https://example.com/{"x" * 90}">Ships</a> </h1><p>{BODY}', "Ships"),
        (f"<head><title>Site</title></head><h2>Ships</h2>\n<p>{BODY}", "Ships"),
        (f"<nav>Home</nav><h1>Ships</h1>\n<p>{BODY}", "Ships"),
        (f"船と海\n\n{BODY}", "船と海"),
        (f"{'a' * MAX_LINE}\n\n{BODY}", "a" * MAX_LINE),
    ],
)
def test_a_title_is_found(text: str, title: str) -> None:
    found = title_span(text)
    assert found is not None
    assert text[slice(*found)] == title


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "Ships of the north",
        "Ships of the north\n\n\n",
        BODY,
        f"{BODY * 3}\n\n{BODY}",
        f"Dear Sir,\n\n{BODY}",
        f"The ships were these:\n\n{BODY}",
        f"船は：\n\n{BODY}",
        f"拝啓、\n\n{BODY}",
        f"عزيزي،\n\n{BODY}",
        f"# \u200b\n\n{BODY}",
        f"- a list\n---\n{BODY}",
        f"Ships of the north\nand of the south\n\n{BODY}",
        f"1834\n\n{BODY}",
        f"-----\n\n{BODY}",
        f"#\n\n{BODY}",
        f"{'a' * (MAX_LINE + 1)}\n\n{BODY}",
        f"<p>Ships</p>\n{BODY}",
        f"<p>{BODY}</p><h2>Ships</h2>\n<p>{BODY}",
        f"<h1></h1>\n{BODY}",
        "\n" * HEAD_CHARACTERS + f"Ships\n\n{BODY}",
    ],
)
def test_what_is_no_title(text: str) -> None:
    assert title_span(text) is None


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("", False),
        (" \n\t\u3000", False),
        ("\0\u200b\ufeff", False),
        (" \u200bShips", True),
        ("🚀", True),
        (" " * 10_000_000 + "Ships", True),
        ("\0" * 10_000_000, False),
    ],
)
def test_what_can_be_seen(text: str, visible: bool) -> None:
    """However long it is: the event loop waits for the answer."""
    began = process_time()
    assert is_visible(text) == visible
    assert process_time() - began < 0.2


def test_only_the_beginning_counts() -> None:
    text = f"Ships\n\n{BODY * 40}"
    assert title_span(text[:HEAD_CHARACTERS]) == title_span(text)
