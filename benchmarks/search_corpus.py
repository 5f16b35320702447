"""2,000 real documents as a folder of files, each with a question that it alone should answer.

No model that ships was trained on them: they are the corpora that nobody trained on, and the parts
of the others that training held out. A document's question (its title, or its purpose line) is cut
out of it, so the words alone do not find it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.evaluation.corpora import (
    NEW_SOURCES,
    TRAINED_SOURCES,
    Corpus,
    available,
    held_out_part,
    load_corpus,
)

MAX_CHARACTERS = 3_000
"""Documents are cut here, at about 750 tokens: a busy core reads them in some twenty minutes."""

MOST = 2_000


@dataclass(frozen=True)
class Question:
    """A question, and the one file that answers it."""

    corpus: str
    text: str
    path: str  # below the folder


@dataclass(frozen=True)
class SearchCorpus:
    folder: Path
    questions: tuple[Question, ...]

    @property
    def trained(self) -> list[Question]:
        """Questions of the corpora whose other parts were trained on: settings are chosen here."""
        return [one for one in self.questions if one.corpus in TRAINED_SOURCES]

    @property
    def new(self) -> list[Question]:
        """Questions of the corpora that nobody trained on: settings are judged here."""
        return [one for one in self.questions if one.corpus in NEW_SOURCES]


def write_corpus(folder: Path, most: int = MOST) -> SearchCorpus:
    """Writes the files that are missing, and returns the questions."""
    questions = []
    for number, (corpus, text, query) in enumerate(_documents()):
        if number == most:
            break
        path = f"{corpus}/{number:04}.txt"
        file = folder / path
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        questions.append(Question(corpus, query, path))
    return SearchCorpus(folder, tuple(questions))


def _documents() -> Iterator[tuple[str, str, str]]:
    """The corpus, text and question of each document, those that nobody trained on first."""
    for corpus in _corpora():
        for one in corpus.documents:
            if one.query:
                yield corpus.name, one.body[:MAX_CHARACTERS].replace("\0", " "), one.query


def _corpora() -> Iterator[Corpus]:
    yield from (load_corpus(name) for name in available(new=True))
    yield from (held_out_part(name) for name in available())
