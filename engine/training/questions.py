"""Questions about passages that need their document, and the passages as they will be served.

A document is its title and some of its passages in a row, without their headings. Three kinds of
question are asked about it:

- a title and a heading find the passage below that heading;
- in texts without headings, a title and a paragraph's first sentence find the rest of it;
- a paragraph that was taken out of a document finds any passage of that document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidInput
from engine.text.chunking import OPENING_TOKENS
from engine.text.tokenizer import TextTokenizer
from engine.training.data import Document
from engine.training.heading_passages import (
    LONGEST_PASSAGE,
    SHORTEST_PASSAGE,
    Passage,
    passages_of,
)
from engine.training.led_passages import led_passages
from engine.training.pairs import draw_source
from engine.training.paragraphs import Paragraphs, can_be_query
from engine.training.token_corpus import Batch, TokenRange, packed, too_little_text
from engine.types import Ids

QUESTIONS_A_DOCUMENT = 6
PARAGRAPHS_A_DOCUMENT = 4
"""The most that are asked of each kind."""

_LEAST_PASSAGES = 3
_PARAGRAPHS_BETWEEN = 4  # one of so many is taken out
_MOST_TAKEN_OUT = 24
_DRAWS = 20  # before the documents are given up: by chance, none of a batch may be asked about


@dataclass(frozen=True)
class QuestionBatch:
    """Documents of one source, and questions about them."""

    documents: Batch
    spans: list[TokenRange]  # each document's title and passages, as rows of its states
    owners: list[int]  # the document of each span, by its place in the batch
    titles: list[int]  # which of the spans are titles
    alone: Batch  # the spans as texts of their own
    around: tuple[int, int]  # special tokens before and after each of these
    questions: Batch | None
    targets: list[int]  # the span that each question should find
    paragraphs: Batch | None
    sources: list[int]  # the document that each paragraph was taken out of


@dataclass(frozen=True)
class _Passage:
    """Ids without special tokens."""

    text: Ids
    question: Ids  # empty if there is none
    paragraphs: tuple[Ids, ...]  # taken out of it

    @property
    def found_part(self) -> Ids:
        """What is pooled to a vector."""
        return self.text[:LONGEST_PASSAGE]

    @property
    def is_long_enough(self) -> bool:
        return len(self.text) >= SHORTEST_PASSAGE


@dataclass(frozen=True)
class _TokenDocument:
    title: Ids
    passages: tuple[_Passage, ...]

    @property
    def num_tokens(self) -> int:
        return len(self.title) + sum(len(one.text) for one in self.passages)


class QuestionCorpus:
    """Titled documents of one or several sources, in passages."""

    def __init__(self, sources: Mapping[str, Sequence[Document]], tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._sources = [
            list(_token_documents(documents, tokenizer)) for documents in sources.values()
        ]

    def longest(self, length: int) -> int:
        """Tokens of the longest document in batches of this length."""
        sizes = [one.num_tokens for source in self._sources for one in source]
        return min(length, max(sizes, default=0) + self._tokenizer.num_special)

    def check_documents(self, shortest: int) -> None:
        """Reject data that nothing can be asked about."""
        if not any(self._long_enough(shortest)):
            raise too_little_text(
                f"no titled document of {shortest} tokens has {_LEAST_PASSAGES} passages",
                shortest=shortest,
                longest=self.longest(shortest),
            )

    def batch(
        self, length: int, tokens: int, shortest: int, generator: np.random.Generator
    ) -> QuestionBatch:
        """Draw documents of one source, of each some passages in a row, at most `length` tokens."""
        for _ in range(_DRAWS):
            found = self._drawn(length, tokens, shortest, generator)
            if found.questions or found.paragraphs:
                return found.batch()
        raise InvalidInput(
            f"documents have no questions within {length} tokens",
            code="too_little_text",
            param="lengths",
            actual=length,
        )

    def _drawn(
        self, length: int, tokens: int, shortest: int, generator: np.random.Generator
    ) -> _Growing:
        source, chosen = draw_source(self._long_enough(shortest), generator)
        found = _Growing(self._tokenizer)
        for number in chosen:
            one = _excerpt(
                self._sources[source][number], length - self._tokenizer.num_special, generator
            )
            if tokens < len(one.text):
                break
            tokens -= len(one.text)
            found.add(one, generator)
        return found

    def _long_enough(self, shortest: int) -> list[list[int]]:
        return [
            [number for number, one in enumerate(source) if one.num_tokens >= shortest]
            for source in self._sources
        ]


class _Excerpt(NamedTuple):
    """A title and some passages in a row."""

    title: Ids
    passages: Sequence[_Passage]

    @property
    def text(self) -> Ids:
        return np.concatenate([self.title, *(one.text for one in self.passages)])


def _excerpt(document: _TokenDocument, room: int, generator: np.random.Generator) -> _Excerpt:
    """As often from the beginning as from a passage drawn among those that half fill the room."""
    room -= len(document.title)
    sizes: NDArray[np.int64] = np.array([len(one.text) for one in document.passages])
    fitting = np.flatnonzero(np.cumsum(sizes[::-1])[::-1] >= min(room, int(sizes.sum())) // 2)
    first = int(generator.choice(fitting)) if generator.random() < 0.5 else 0
    count = int(np.searchsorted(np.cumsum(sizes[first:]), room, side="right"))
    if count:
        return _Excerpt(document.title, document.passages[first : first + count])
    only = document.passages[first]
    return _Excerpt(document.title, [_Passage(only.text[: max(room, 0)], only.question, ())])


@dataclass
class _Growing:
    """A batch to which documents are added."""

    tokenizer: TextTokenizer
    texts: list[Ids] = field(default_factory=list)
    spans: list[TokenRange] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    titles: list[int] = field(default_factory=list)
    alone: list[Ids] = field(default_factory=list)
    questions: list[Ids] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    paragraphs: list[Ids] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    rows: int = 0

    def add(self, one: _Excerpt, generator: np.random.Generator) -> None:
        number = len(self.texts)
        begin = self.rows + self.tokenizer.num_prefix
        self.titles.append(len(self.spans))
        self._add_span(begin, one.title, number)
        begin += len(one.title)
        asked: list[tuple[Ids, int]] = []
        for passage in one.passages:
            if passage.is_long_enough:
                if passage.question.size:
                    asked.append((passage.question, len(self.spans)))
                self._add_span(begin, passage.found_part, number)
            begin += len(passage.text)
        for index in _some(len(asked), QUESTIONS_A_DOCUMENT, generator):
            question, target = asked[index]
            self.questions.append(question)
            self.targets.append(target)
        taken = [paragraph for passage in one.passages for paragraph in passage.paragraphs]
        for index in _some(len(taken), PARAGRAPHS_A_DOCUMENT, generator):
            self.paragraphs.append(taken[index][:LONGEST_PASSAGE])
            self.sources.append(number)
        self.texts.append(one.text)
        self.rows = begin + self.tokenizer.num_suffix

    def _add_span(self, begin: int, text: Ids, owner: int) -> None:
        self.spans.append((begin, begin + len(text)))
        self.owners.append(owner)
        self.alone.append(text)

    def batch(self) -> QuestionBatch:
        def batch_of(texts: Sequence[Ids]) -> Batch | None:
            return packed(texts, self.tokenizer) if texts else None

        return QuestionBatch(
            documents=packed(self.texts, self.tokenizer),
            spans=self.spans,
            owners=self.owners,
            titles=self.titles,
            alone=packed(self.alone, self.tokenizer),
            around=(self.tokenizer.num_prefix, self.tokenizer.num_suffix),
            questions=batch_of(self.questions),
            targets=self.targets,
            paragraphs=batch_of(self.paragraphs),
            sources=self.sources,
        )


def _some(count: int, most: int, generator: np.random.Generator) -> list[int]:
    chosen: list[int] = generator.permutation(count)[:most].tolist()
    return chosen


def _token_documents(
    documents: Sequence[Document], tokenizer: TextTokenizer
) -> Iterator[_TokenDocument]:
    for document in documents:
        headed = passages_of(document)
        passages = headed or led_passages(document)
        if not passages:
            continue
        found = _token_passages(passages, tokenizer, keeps_first=bool(headed))
        (title,) = tokenizer.encode_batch([document.title])
        enough = sum(one.is_long_enough for one in found) >= _LEAST_PASSAGES
        if enough and title.num_content:  # a title of spaces has no tokens
            yield _TokenDocument(title.content[:OPENING_TOKENS], tuple(found))


def _token_passages(
    passages: Sequence[Passage], tokenizer: TextTokenizer, *, keeps_first: bool
) -> list[_Passage]:
    rest, taken = _taken_out([one.text for one in passages], keeps_first=keeps_first)
    asking = Counter(one.query for one in passages)
    # Two passages that answer one question are each other's wrong answer.
    asked = [one.query if asking[one.query] == 1 else "" for one in passages]
    texts = [*rest, *asked, *(paragraph for some in taken for paragraph in some)]
    contents = iter([item.content for item in tokenizer.encode_batch(texts)])
    bodies = [next(contents) for _ in rest]
    questions = [next(contents) for _ in asked]
    found: list[_Passage] = []
    for body, question, some in zip(bodies, questions, taken, strict=True):
        own = tuple(next(contents) for _ in some)
        if body.size:
            found.append(_Passage(body, question, own))
        elif found:  # all of it was taken out
            found[-1] = replace(found[-1], paragraphs=found[-1].paragraphs + own)
    return found


def _taken_out(texts: Sequence[str], *, keeps_first: bool) -> tuple[list[str], list[list[str]]]:
    """The texts without some paragraphs, evenly spread, and these by text.

    The first paragraph of a section stays: without it the section may be about anything.
    """
    paragraphs = Paragraphs(texts)
    fitting = [
        place
        for place, one in paragraphs.all().items()
        if (place[1] or not keeps_first) and can_be_query(one.strip())
    ]
    step = max(_PARAGRAPHS_BETWEEN, -(-len(fitting) // _MOST_TAKEN_OUT))
    return paragraphs.taken_out(set(fitting[step // 2 :: step]))
