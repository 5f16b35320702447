"""What models were trained on, and whether they may be evaluated on the same documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from engine.evaluation.corpora import SOURCES, TRAINED_SOURCES, Corpus
from engine.model.embedding_model import EmbeddingModel
from engine.training.data import fingerprint
from engine.training.model_folder import TrainingRecord, read_record, with_earlier_records


def overlap_warnings(name: str, model: EmbeddingModel, corpora: Sequence[Corpus]) -> Iterator[str]:
    """Why a model may have been trained on documents that it is evaluated on, each reason once."""
    if model.info.calibration is None:  # published as it is, not trained here
        return
    reasons = (
        reason
        for record in with_earlier_records(read_record(model))
        for reason in _reasons(name, record, corpora)
    )
    yield from dict.fromkeys(reasons)


def trained_corpora(models: Iterable[EmbeddingModel]) -> set[str]:
    """The corpora that the models were trained on, in part; those of the shipped models if no
    record names any."""
    records = (
        record for model in models for record in with_earlier_records(read_record(model)) if record
    )
    named = {name for record in records for name in record["sources"] if name in SOURCES}
    return named or set(TRAINED_SOURCES)


def _reasons(name: str, record: TrainingRecord | None, corpora: Sequence[Corpus]) -> Iterator[str]:
    """Compare a record's fingerprints with those of the evaluated documents.

    Packaged corpora share no documents. A folder may contain documents of any corpus, and splits
    them by the text of its own files.
    """
    if record is None:
        yield (
            f"{name} has no record of what it was trained or calibrated on; that may include "
            "documents it is evaluated on"
        )
        return
    evaluated = {one.name: fingerprint(one.documents) for one in corpora if one.documents}
    for source, part in record["sources"].items():
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
                f"{name} was trained on {source}, which is split by its own files; that may "
                f"include documents of {', '.join(unsure)}"
            )
