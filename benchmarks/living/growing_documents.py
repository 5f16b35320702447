"""Long documents that grow, and questions that their passages answer.

A passage is asked for by its title and heading or its first sentence, which the text does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from benchmarks.living.volumes import volumes
from engine.evaluation.corpora import available, load_corpus
from engine.training.data import Document
from engine.training.heading_passages import Passage, passages_of
from engine.training.led_passages import led_passages
from engine.types import Span

SEED = 11
QUESTIONS = 12  # of a document

_LEAST_LEFT = 0.8  # of a document's characters, once its headings are left out


class Grown(NamedTuple):
    """A document, its questions, and the characters that answer each."""

    corpus: str
    name: str
    text: str
    questions: list[str]
    answers: list[Span]


def growing_documents(
    corpora: Sequence[str] | None, *, least: int, most: int, count: int
) -> Iterator[Grown]:
    """So many of each corpus, in turn over the corpora: by default all outside training."""
    names = corpora or available(new=True)
    found = [list(_long(name, least, most, count)) for name in names]
    for number in range(count):
        for documents in found:
            if number < len(documents):
                yield documents[number]


def _long(corpus: str, least: int, most: int, count: int) -> Iterator[Grown]:
    found = volumes(load_corpus(corpus).documents, least, 2 * count, SEED)
    grown = (_grown(corpus, chapters, most) for chapters in found)
    fair = (one for one in grown if len(one.text) >= _LEAST_LEFT * least and one.questions)
    yield from islice(fair, count)


def _grown(corpus: str, chapters: Sequence[Document], most: int) -> Grown:
    """The chapters without what their questions ask by, and not longer than `most` characters."""
    text, asked = "", []
    for chapter in chapters:
        text = f"{text}\n\n{chapter.title}".lstrip()
        for passage in passages_of(chapter) or led_passages(chapter) or [Passage("", chapter.body)]:
            if len(text) + len(passage.text) > most:
                break
            start = len(text) + 2
            text = f"{text}\n\n{passage.text}"
            if passage.query:
                asked.append((passage.query, Span(start, len(text))))
    chosen = asked[:: max(1, -(-len(asked) // QUESTIONS))]
    name = f"{corpus}/{chapters[0].name}"
    return Grown(corpus, name, text, [one for one, _ in chosen], [span for _, span in chosen])
