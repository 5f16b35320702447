"""What models are evaluated on: the documents of a corpus that no training touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.adapt.corpora import Corpus, load_corpus
from engine.adapt.documents import held_out
from engine.model.embedding_model import EmbeddingModel


@dataclass(frozen=True, kw_only=True)
class LongDocuments:
    """Which documents of a corpus are asked for, by their tokens."""

    shortest: int = 2000
    longest: int = 16_384  # longer ones take most of the time and are few
    most: int = 60  # of each corpus


def held_out_part(name: str) -> Corpus:
    whole = load_corpus(name)
    kept = set(held_out(whole.documents))
    return _only(whole, [document in kept for document in whole.documents])


def long_documents(
    corpus: Corpus, teacher: EmbeddingModel, wanted: LongDocuments = LongDocuments()
) -> Corpus:
    encoded = teacher.tokenizer.encode_batch([document.body for document in corpus.documents])
    chosen = [wanted.shortest <= item.num_tokens <= wanted.longest for item in encoded]
    return _only(corpus, chosen, wanted.most)


def _only(corpus: Corpus, chosen: Sequence[bool], most: int | None = None) -> Corpus:
    kept = [index for index, is_chosen in enumerate(chosen) if is_chosen][:most]
    return Corpus(corpus.name, tuple(corpus.documents[index] for index in kept))
