"""What models are evaluated on: the documents of a corpus that no training touched, as far as the
models' own accounts of their training tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.adapt.account import Account, account_of, accounts_in
from engine.adapt.corpora import SOURCES, Corpus, load_corpus
from engine.adapt.documents import fingerprint, held_out
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
    """Why the model called `name` may have been trained on documents of these held-out parts, each
    reason once. One that attends as it was published to was not trained here."""
    if model.info.calibration is None:
        return
    reasons = (
        reason
        for account in accounts_in(account_of(model))
        for reason in _reasons(name, account, corpora)
    )
    yield from dict.fromkeys(reasons)


def _reasons(name: str, account: Account | None, corpora: Sequence[Corpus]) -> Iterator[str]:
    """An account has one fingerprint for each part of what was trained on. Packaged corpora share
    no documents; a folder may hold those of any, and splits them by its own files' text."""
    if account is None:
        yield (
            f"{name} has no account of what it was trained or calibrated on: whether that holds "
            "documents it is evaluated on cannot be told"
        )
        return
    evaluated = {one.name: fingerprint(one.documents) for one in corpora if one.documents}
    for source, part in account["sources"].items():
        if part["trained_on"] in evaluated.values():
            yield f"{name} was trained on the very documents it is evaluated on, those of {source}"
            continue
        unsure = [corpus for corpus, held in evaluated.items() if held != part["held_out"]]
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


def _only(corpus: Corpus, chosen: Sequence[bool], most: int | None = None) -> Corpus:
    kept = [index for index, is_chosen in enumerate(chosen) if is_chosen][:most]
    return Corpus(corpus.name, tuple(corpus.documents[index] for index in kept))
