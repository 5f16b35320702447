"""The documents that readings are compared on, and what is asked about them.

Every document is its title and its text without headings. Three kinds of question find its parts:

- passages that need their document: the query is the title and a heading, the answer the text
  below that heading, which contains neither. The title stands at the document's top only.
- the same in texts without headings: the query is the title and a paragraph's first sentence, which
  is taken out of it, and the answer is the rest of the paragraph.
- a later paragraph: it is taken out of the document's later half, and the document that has the
  best chunk of 256 tokens answers it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.evaluation.corpora import Corpus
from engine.text.chunking import OPENING_TOKENS
from engine.text.titles import title_span
from engine.text.tokenizer import TextTokenizer
from engine.training.data import Document
from engine.training.heading_passages import LONGEST_PASSAGE, SHORTEST_PASSAGE, Passage, passages_of
from engine.training.led_passages import led_passages
from engine.training.paragraphs import Paragraphs, Place, can_be_query
from engine.training.token_corpus import TokenRange
from engine.types import Ids

PARAGRAPHS_A_DOCUMENT = 4


@dataclass(frozen=True, kw_only=True)
class DocumentLimits:
    """Which documents of a corpus are read: drawn by a hash of their text, within these limits."""

    shortest: int = 1500  # tokens
    longest: int = 20_000
    documents: int = 45  # of each corpus
    tokens: int = 40_000  # of each corpus, together
    passages: int = 10  # asked for, of each document
    chunk: int = 256  # tokens of the chunks that later paragraphs find


FRESH_LIMITS = DocumentLimits(longest=5000, tokens=80_000)
"""For corpora that were never scored before: more documents for as many tokens."""


@dataclass(frozen=True)
class ReadingDocument:
    """A document to read: ids between special tokens, and what is asked about it."""

    ids: Ids
    title: Ids
    opening: TokenRange  # the title that is found at the text's beginning, or its first words
    finds_title: bool
    passages: list[TokenRange]
    queries: dict[int, str]  # by the number of the passage that answers
    is_headed: bool  # queries name headings, not first sentences
    paragraphs: list[str]  # taken out of the text


def reading_documents(
    corpus: Corpus, tokenizer: TextTokenizer, limits: DocumentLimits
) -> list[ReadingDocument]:
    """The documents that fit the limits, in an order that depends on their text alone."""
    by_hash = sorted(corpus.documents, key=lambda one: hashlib.sha256(one.body.encode()).digest())
    found: list[ReadingDocument] = []
    bodies: set[str] = set()
    room = limits.tokens
    for document in by_hash:
        # A token has four characters or so: most documents need not be tokenized to be left out.
        if document.body in bodies or not (
            2 * limits.shortest <= len(document.body) <= 8 * limits.longest
        ):
            continue
        one = _reading_document(document, tokenizer, limits)
        if limits.shortest <= len(one.ids) <= min(limits.longest, room):
            bodies.add(document.body)
            found.append(one)
            room -= len(one.ids)
        if len(found) == limits.documents:
            break
    return found


def _reading_document(
    document: Document, tokenizer: TextTokenizer, limits: DocumentLimits
) -> ReadingDocument:
    headed = passages_of(document)
    passages = headed or led_passages(document)
    texts, paragraphs = _without_paragraphs(
        [one.text for one in passages] or [document.body], keeps_first=bool(headed)
    )
    title, *parts = [item.content for item in tokenizer.encode_batch([document.title, *texts])]
    ends = tokenizer.num_prefix + np.cumsum([len(title), *map(len, parts)])
    spans = [
        (int(end) - len(part), int(end) - len(part) + min(len(part), LONGEST_PASSAGE))
        for part, end in zip(parts, ends[1:], strict=True)
    ]
    queries: dict[int, str] = {}
    usable = [at for at, (start, end) in enumerate(spans) if end - start >= SHORTEST_PASSAGE]
    if passages:
        asked = Counter(one.query for one in passages)
        answers = [
            number
            for number, at in enumerate(usable)
            if passages[at].query
            and asked[passages[at].query] == 1
            and _needs_document(document.title, passages[at])
        ]
        step = max(1, -(-len(answers) // limits.passages))
        queries = {number: passages[usable[number]].query for number in answers[::step]}
    ids = tokenizer.between_special(np.concatenate([title, *parts]))
    found = _found_title("\n\n".join(filter(None, [document.title, *texts])), tokenizer)
    return ReadingDocument(
        ids=ids,
        title=title,
        opening=found or (0, min(OPENING_TOKENS, len(ids))),
        finds_title=found is not None,
        passages=[spans[at] for at in usable] if passages else [],
        queries=queries,
        is_headed=bool(headed),
        paragraphs=paragraphs,
    )


def _found_title(text: str, tokenizer: TextTokenizer) -> TokenRange | None:
    """The tokens of the title that the server would find, as it would use them."""
    title = title_span(text)
    if title is None:
        return None
    before, until = tokenizer.encode_batch([text[: title.start] or " ", text[: title.end]])
    start, end = tokenizer.num_prefix + before.num_content, tokenizer.num_prefix + until.num_content
    return start, min(end, start + OPENING_TOKENS)


def _needs_document(title: str, passage: Passage) -> bool:
    """Whether the passage has neither the title nor the heading that its query names."""
    heading = passage.query.removeprefix(f"{title}: ")
    text = passage.text.casefold()
    return title.casefold() not in text and heading.casefold() not in text


def _without_paragraphs(texts: Sequence[str], *, keeps_first: bool) -> tuple[list[str], list[str]]:
    """The texts, and what was taken out of them: paragraphs of the later half, evenly spread.

    The first paragraph of a section stays: without it the section may be about anything.
    """
    paragraphs = Paragraphs(texts)
    seen = Counter(one.strip() for one in paragraphs.all().values())
    middle = sum(map(len, texts)) / 2
    before = 0
    fitting: list[Place] = []
    for place, one in paragraphs.all().items():
        may_go = before >= middle and (place[1] or not keeps_first)
        if may_go and can_be_query(one.strip()) and seen[one.strip()] == 1:
            fitting.append(place)
        before += len(one) + 2
    step = max(1, -(-len(fitting) // PARAGRAPHS_A_DOCUMENT))
    rest, taken = paragraphs.taken_out(set(fitting[::step]))
    return rest, [one for some in taken for one in some]
