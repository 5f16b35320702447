"""What models are evaluated on: the documents of a corpus that no training touched, as far as the
models' own accounts of their training tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.adapt.corpora import SOURCES, Corpus, load_corpus
from engine.adapt.documents import DATA_FILE, fingerprint, held_out
from engine.checkpoint.json_file import read_object_if_present
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


def doubts(name: str, model: EmbeddingModel, corpora: Sequence[Corpus]) -> Iterator[str]:
    """Why the model called `name` may have been trained on documents of these held-out parts.

    Its data.json has one fingerprint for each part of what it was trained on. Packaged corpora
    share no documents; a folder may hold those of any, and splits them by its own files' text.
    """
    evaluated = {one.name: fingerprint(one.documents) for one in corpora if one.documents}
    for source, part in _trained_on(model):
        if part.get("trained_on") in evaluated.values():
            yield f"{name} was trained on the very documents it is evaluated on, those of {source}"
            continue
        unsure = [corpus for corpus, held in evaluated.items() if held != part.get("held_out")]
        if source in SOURCES and source in unsure:
            yield (
                f"{name} was trained on another state of {source}: a document that has changed "
                "since may be evaluated and trained on"
            )
        elif source not in SOURCES and len(unsure) == len(evaluated):
            yield (
                f"{name} was trained on {source}, which is split by its own files: whether it "
                f"holds documents of {', '.join(unsure)} cannot be told"
            )


def _trained_on(model: EmbeddingModel) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each source that training wrote down, and those of the trainings it went on from."""
    account: object = read_object_if_present(model.checkpoint.folder / DATA_FILE)
    while isinstance(account, Mapping):
        sources = account.get("sources")
        parts = sources.items() if isinstance(sources, Mapping) else ()
        yield from ((source, part) for source, part in parts if isinstance(part, Mapping))
        account = account.get("before")


def _only(corpus: Corpus, chosen: Sequence[bool], most: int | None = None) -> Corpus:
    kept = [index for index, is_chosen in enumerate(chosen) if is_chosen][:most]
    return Corpus(corpus.name, tuple(corpus.documents[index] for index in kept))
