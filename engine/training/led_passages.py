"""Passages of titled texts without headings, with queries that their first sentences make."""

from __future__ import annotations

import re

from engine.training.data import Document
from engine.training.heading_passages import Passage

_LEAST_LED = 3  # paragraphs with a first sentence to ask by
_SENTENCE = re.compile(r"(\S.{20,200}?[.!?])\s+(?=\S)", re.DOTALL)
_SHORTEST_REST = 200  # characters of a paragraph without its first sentence


def led_passages(document: Document) -> list[Passage]:
    """The paragraphs of a titled text without headings. Those that are long enough lose their first
    sentence, which asks for the rest; the others are not asked for."""
    if not document.title:
        return []
    found = []
    for paragraph in document.body.split("\n\n"):
        text = paragraph.strip()
        lead = _SENTENCE.match(text)
        if lead is None or len(text) - lead.end() < _SHORTEST_REST:
            found.append(Passage("", text))
        else:
            query = f"{document.title}: {' '.join(lead[1].split())}"
            found.append(Passage(query, text[lead.end() :]))
    return found if sum(bool(one.query) for one in found) >= _LEAST_LED else []
