"""Chunks that know their document, through Voyage's client: when do they find more than plain ones?

    lln serve
    python examples/contextual_chunks.py --folder my-texts     # *.txt and *.md, the title first
    python examples/contextual_chunks.py --corpus letters      # as in docs/clients.md

Documents are cut by chonkie and by LangChain's splitter, and indexed three times: chunks alone,
chunks with the title put before each, and contextual chunks. The same questions are then asked of
each index. A question is the first sentence of a paragraph, which is taken out of the document; the
answer is the chunk with the rest of that paragraph.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import voyageai
from chonkie import RecursiveChunker
from langchain_text_splitters import RecursiveCharacterTextSplitter

CHUNK_CHARACTERS = 1000
CHUNKS_IN_A_CALL = 200
CUTOFF = 10
"""The reciprocal rank of an answer below this rank is 0."""
RESAMPLES = 2000
SENTENCE = re.compile(r"(?P<first>[^\n]{40,250}?[.!?]) (?P<rest>[^\n]{200,})")
NOTHING_TO_ASK = (
    "none of the {num_documents} documents has a paragraph to ask for: after the first one, with a "
    "first sentence of 40 to 250 characters and 200 more on its line"
)

Chunks = list[str]
Array = np.ndarray[Any, np.dtype[Any]]


class Document(NamedTuple):
    title: str
    body: str


class Question(NamedTuple):
    sentence: str
    document: int
    answer_at: int
    """A character of the document's text: the middle of the paragraph's rest."""


def chonkie_starts(text: str) -> list[int]:
    chunker = RecursiveChunker(tokenizer="character", chunk_size=CHUNK_CHARACTERS)
    return [chunk.start_index for chunk in chunker.chunk(text)]


def langchain_starts(text: str) -> list[int]:
    splitter = RecursiveCharacterTextSplitter(
        chunk_size=CHUNK_CHARACTERS, chunk_overlap=0, add_start_index=True
    )
    return [piece.metadata["start_index"] for piece in splitter.create_documents([text])]


SPLITTERS: dict[str, Callable[[str], list[int]]] = {
    "chonkie": chonkie_starts,
    "LangChain": langchain_starts,
}


def chunk_starts(text: str, splitter: str) -> list[int]:
    """Where chunks begin. One of only white space would have no vector: the chunk before has it."""
    starts = [0, *SPLITTERS[splitter](text)[1:]]
    bounds = pairwise([*starts, len(text)])
    return [start for start, end in bounds if text[start:end].strip()]


def cut(text: str, starts: Sequence[int]) -> Chunks:
    """Each chunk reaches to the next, white space included: together they are the document."""
    return [text[start:end] for start, end in pairwise([*starts, len(text)])]


class Client:
    """Voyage's client. Only the address is ours."""

    def __init__(self, url: str, key: str, model: str) -> None:
        self._client = voyageai.Client(api_key=key, base_url=f"{url}/v1", timeout=600)
        self._model = model

    def plain(self, documents: Sequence[Chunks]) -> Array:
        return self.texts([chunk for chunks in documents for chunk in chunks], "document")

    def contextual(self, documents: Sequence[Chunks]) -> Array:
        found: list[list[float]] = []
        for chunks in documents:
            answer = self._client.contextualized_embed([chunks], self._model, "document")
            found += answer.results[0].embeddings
        return np.asarray(found, np.float32)

    def texts(self, texts: Sequence[str], kind: str) -> Array:
        found: list[list[float]] = []
        for at in range(0, len(texts), CHUNKS_IN_A_CALL):
            part = list(texts[at : at + CHUNKS_IN_A_CALL])
            found += self._client.embed(part, self._model, input_type=kind).embeddings
        return np.asarray(found, np.float32)


def with_questions(document: Document, number: int, most: int) -> tuple[str, list[Question]]:
    """The text, its title first, without the sentences that are asked for. They are taken evenly
    out of all paragraphs but the first."""
    text = f"{document.title}\n\n{document.body}"
    paragraphs = list(SENTENCE.finditer(text, text.find("\n\n", len(document.title) + 2) + 1))
    chosen = paragraphs[:: max(1, -(-len(paragraphs) // most))]
    kept, at, questions = "", 0, []
    for paragraph in chosen:
        kept += text[at : paragraph.start()]
        rest = paragraph["rest"]
        questions.append(Question(paragraph["first"], number, len(kept) + len(rest) // 2))
        at = paragraph.start("rest")
    return kept + text[at:], questions


def reciprocal_ranks(asked: Array, index: Array, wanted: Sequence[int]) -> Array:
    scores = asked @ index.T
    ranks = (scores > scores[np.arange(len(wanted)), wanted][:, None]).sum(1) + 1
    return np.where(ranks <= CUTOFF, 1 / ranks, 0.0)


def interval(values: Array, documents: Array) -> list[float]:
    """The mean and its 95 % interval. Questions of one document go together, so whole documents are
    drawn; of differences between two indexes this is paired."""
    _, place = np.unique(documents, return_inverse=True)
    sums, counts = np.bincount(place, values), np.bincount(place)
    drawn = np.random.default_rng(0).integers(0, len(sums), (RESAMPLES, len(sums)))
    low, high = np.percentile(sums[drawn].sum(1) / counts[drawn].sum(1), [2.5, 97.5])
    return [round(float(value), 4) for value in (values.mean(), low, high)]


def compare(documents: Sequence[Document], client: Client, most: int) -> Iterator[dict[str, Any]]:
    """For each splitter and kind of question: each index, and its difference from the plain one."""
    read = [with_questions(document, number, most) for number, document in enumerate(documents)]
    texts = [text for text, _ in read]
    questions = [question for _, asked in read for question in asked]
    owners = np.array([question.document for question in questions])
    asked = {
        "title and sentence": client.texts(
            [f"{documents[one.document].title}: {one.sentence}" for one in questions], "query"
        ),
        "sentence": client.texts([one.sentence for one in questions], "query"),
    }
    for splitter in SPLITTERS:
        starts = [chunk_starts(text, splitter) for text in texts]
        chunks = [cut(text, at) for text, at in zip(texts, starts, strict=True)]
        before = np.cumsum([0, *map(len, chunks)])
        wanted = [
            int(
                before[one.document]
                + np.searchsorted(starts[one.document][1:], one.answer_at, "right")
            )
            for one in questions
        ]
        indexes = {
            "plain": client.plain(chunks),
            "title before each chunk": client.plain(titled(chunks, documents)),
            "contextual": client.contextual(chunks),
        }
        for kind, vectors in asked.items():
            ranks = {
                name: reciprocal_ranks(vectors, index, wanted) for name, index in indexes.items()
            }
            for name, found in ranks.items():
                yield {
                    "splitter": splitter,
                    "chunks": int(before[-1]),
                    "questions": len(questions),
                    "asked by": kind,
                    "index": name,
                    "mrr": interval(found, owners),
                    "minus plain": interval(found - ranks["plain"], owners),
                }


def titled(documents: Sequence[Chunks], of: Sequence[Document]) -> list[Chunks]:
    """The title put before each chunk but the first, which begins with it."""
    return [
        [chunks[0], *(f"{document.title}\n\n{chunk}" for chunk in chunks[1:])]
        for chunks, document in zip(documents, of, strict=True)
    ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    head = ("splitter", "query", "index", f"MRR@{CUTOFF}", "minus plain")
    lines = [head, ("---",) * len(head)]
    for row in rows:
        mean, low, high = row["minus plain"]
        less = "" if row["index"] == "plain" else f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"
        found = (row["splitter"], row["asked by"], row["index"], f"{row['mrr'][0]:.3f}", less)
        lines.append(found)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def read_folder(folder: Path) -> Iterator[Document]:
    for path in sorted([*folder.rglob("*.txt"), *folder.rglob("*.md")]):
        title, _, body = path.read_text(encoding="utf-8").strip().partition("\n")
        if body:
            yield Document(title.strip("# "), body.strip())


def read_corpus(name: str) -> Iterator[Document]:
    """A corpus that is installed as a package; docs/evaluation lists them."""
    from engine.evaluation.corpora import load_corpus

    for document in load_corpus(name).documents:
        if document.title and len(document.body) > 4 * CHUNK_CHARACTERS:
            yield Document(document.title, document.body)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--folder", type=Path, help="texts of your own")
    source.add_argument("--corpus", help="a corpus that is installed as a package")
    parser.add_argument("--url", default="http://localhost:8000")
    parser.add_argument("--key", default="unused")
    parser.add_argument("--model", default="default")
    parser.add_argument("--documents", type=int, default=40, help="at most so many")
    parser.add_argument("--questions", type=int, default=6, help="of each document, at most")
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    options = parser.parse_args(arguments)
    found = read_corpus(options.corpus) if options.corpus else read_folder(options.folder)
    documents = list(found)[: options.documents]
    if not any(with_questions(one, 0, options.questions)[1] for one in documents):
        parser.error(NOTHING_TO_ASK.format(num_documents=len(documents)))
    client = Client(options.url, options.key, options.model)
    rows = list(compare(documents, client, options.questions))
    print(table(rows))
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
