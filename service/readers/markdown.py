"""Markdown, as it is: characters of passages are those of the file itself."""

from __future__ import annotations

from engine.text.headings.sections import sections
from service.readers.extracted import Extracted, decode

_TITLE_WITHIN = 20_000
"""A title stands at the start; looking through all of a long file would take time."""


def read_markdown(content: bytes) -> Extracted:
    text = decode(content)
    found = sections(text[:_TITLE_WITHIN], "markdown")
    title = next((section.headings[0] for section in found if section.headings), None)
    return Extracted(text=text, title=title)
