"""Packaged pages and tagged texts as documents."""

from __future__ import annotations

from engine.evaluation import texts
from engine.evaluation.pages import documents_of, plain_title


def test_a_page_becomes_headed_text() -> None:
    html = """<html><head><title>no</title></head><body><div class="navheader">no</div>
    <h1>9.1. Bread</h1><p>Some <b>flour</b>.</p><h2>Bread</h2><p>more</p>
    <h2>2.1 Dough ¶</h2><pre>a\n# b\n</pre><p>end</p></body></html>"""
    html = html.replace("end", "end " * 120)
    [one] = documents_of("page", html)
    assert (one.title, one.query) == ("Bread", "Bread")
    assert one.body.startswith("Some flour.\n\nmore\n\n## Dough")
    assert "\n    # b" in one.body
    assert "no" not in one.body.split()
    assert [two.title for two in documents_of("page", html, level=2)] == ["Dough"]
    assert plain_title("Chapter 9. Unix Services") == "Unix Services"
    assert plain_title("A word") == "A word"


def test_a_tagged_text_becomes_prose() -> None:
    tagged = "\n\n\tHe/pps said/vbd ,/, ``/`` Go/vb !/. ''/''\n\n\n\tShe/pps and/or/cc he/pps ./.\n"
    assert texts._without_tags(tagged) == 'He said, "Go!"\n\nShe and/or he.'


def test_titles_of_tagged_texts() -> None:
    contents = """LIST OF TEXTS

D02. Schubert Ogden, Christ Without Myth. New York: Harper, 1961.
Pp. 128-134

F01. Rosemary Black, "How Much Do You
Tell?" Vogue, 138:1

H03. Untitled
"""
    assert texts._sample_titles(contents) == {
        "D02": "Christ Without Myth",
        "F01": "How Much Do You Tell?",
    }
