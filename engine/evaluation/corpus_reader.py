"""Loads the corpora of an evaluation of readings, and reads each with all of its models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.evaluation.corpora import (
    LATER_SOURCES,
    Corpus,
    held_out_part,
    load_corpus,
)
from engine.evaluation.corpus_split import Split
from engine.evaluation.corpus_vectors import CorpusVectors, read_corpus
from engine.evaluation.overlap import overlap_warnings
from engine.evaluation.reading_documents import DocumentLimits, reading_documents
from engine.evaluation.vector_store import VectorStore
from engine.model.embedding_model import EmbeddingModel


def load_corpora(split: Split) -> dict[str, Corpus]:
    """The corpora by name; of those that a model was trained on, the held-out parts."""
    return {
        name: held_out_part(name) if name in split.trained else load_corpus(name)
        for name in (*split.validation, *split.test)
    }


@dataclass(frozen=True, kw_only=True)
class CorpusReader:
    model: EmbeddingModel
    others: Mapping[str, EmbeddingModel]
    corpora: Mapping[str, Corpus]
    store: VectorStore
    limits: DocumentLimits
    fresh_limits: DocumentLimits
    tell: Callable[[str], None]

    def warnings(self) -> Iterator[str]:
        """Why models may have been trained on these corpora."""
        corpora = list(self.corpora.values())
        for name, model in ((self.model.name, self.model), *self.others.items()):
            yield from overlap_warnings(name, model, corpora)

    def read(self, names: Sequence[str]) -> list[CorpusVectors]:
        """Those that have documents to tell from each other within the limits."""
        found = []
        for number, name in enumerate(names, start=1):
            limits = self.fresh_limits if name in LATER_SOURCES else self.limits
            documents = reading_documents(self.corpora[name], self.model.tokenizer, limits)
            corpus = f"{name}, corpus {number} of {len(names)}"
            if len(documents) < 2:
                self.tell(f"{corpus}: left out, {len(documents)} documents within the limits")
                continue
            tokens = sum(len(one.ids) for one in documents)
            self.tell(f"{corpus}: {len(documents)} documents, {tokens:,} tokens")
            found.append(read_corpus(self.model, name, documents, limits, self.others, self.store))
        return found
