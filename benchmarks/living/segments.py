"""What reading a document in segments costs retrieval, against reading it in one piece.

    python -m benchmarks.living.segments --out FILE [--cache FOLDER]

Documents of corpora outside training are read both ways, whole each time, and asked for what
`lln evaluate --readings` asks: their passages, and themselves by a later paragraph. All else is the
same: what is read alone, the opening, the questions. The difference is question by question, with a
bootstrap interval by documents; each corpus counts alike.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.store import commit
from engine import Engine
from engine.evaluation.bootstrap import Interval, minus, pooled
from engine.evaluation.corpora import available, load_corpus
from engine.evaluation.corpus_vectors import (
    CorpusVectors,
    PartKind,
    Parts,
    PlacedParts,
    read_corpus,
)
from engine.evaluation.questions import QUESTIONS, WHOLE_BY_PARAGRAPH
from engine.evaluation.reading_documents import (
    DocumentLimits,
    ReadingDocument,
    reading_documents,
)
from engine.evaluation.readings import Reading
from engine.evaluation.vector_store import VectorStore
from engine.model.embedding_model import EmbeddingModel
from engine.model.pooling import pool
from engine.model.segmented_pass import Reading as SegmentReading
from engine.model.segmented_pass import SegmentedPass
from engine.text.segments import segments_of
from engine.text.tokenizer import TextTokenizer
from engine.training.encode import Vectors, pooling_of, unit

WAYS = {
    "late": Reading(late=1.0),
    "half late": Reading(late=0.5),
    "balanced": Reading(late=0.5, opening=0.3),
}


def main() -> None:
    options = _parser().parse_args()
    names = options.corpora or available(new=True)
    store = VectorStore(options.cache)
    limits = DocumentLimits()
    whole: list[CorpusVectors] = []
    parted: list[CorpusVectors] = []
    counts: list[int] = []
    with Engine.load(options.model) as engine:
        for name in names:
            documents = reading_documents(load_corpus(name), engine.model.tokenizer, limits)
            if not documents:
                continue
            vectors = read_corpus(engine.model, name, documents, limits, store=store)
            rows = [_segment_rows(one, engine.model.tokenizer) for one in documents]
            whole.append(vectors)
            parted.append(_in_segments(engine.model, vectors, documents, rows, limits))
            counts += map(len, rows)
            print(f"{name}: {len(documents)} documents", flush=True)
    found: dict[str, Any] = {
        "model": options.model,
        "documents": len(counts),
        "of_several_segments": sum(count > 1 for count in counts),
        "segments": sum(counts),
        "tokens": sum(one.num_tokens for one in whole),
        "corpora": [one.name for one in whole],
        "rows": list(_rows(whole, parted)),
        "commit": commit(),
    }
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    _show(found)


def _segment_rows(document: ReadingDocument, tokenizer: TextTokenizer) -> list[int]:
    """The rows of each segment, which the engine chooses by the text.

    The text is written anew from the tokens, with an empty line where a passage begins; where its
    tokens are others, the last segment has what is missing or too much.
    """
    end = len(document.ids) - tokenizer.num_suffix
    starts = sorted({tokenizer.num_prefix, *(start for start, _ in document.passages)})
    pieces = [
        tokenizer.decode(document.ids[start:stop], skip_special_tokens=True)
        for start, stop in zip(starts, [*starts[1:], end], strict=True)
    ]
    lengths = [len(one.ids) for one in segments_of("\n\n".join(pieces), tokenizer)]
    bounds = np.minimum(tokenizer.num_prefix + np.cumsum(lengths), end)
    bounds[-1] = len(document.ids)
    return [int(rows) for rows in np.diff(bounds, prepend=0) if rows]


@torch.inference_mode()
def _in_segments(
    model: EmbeddingModel,
    vectors: CorpusVectors,
    documents: Sequence[ReadingDocument],
    rows: Sequence[Sequence[int]],
    limits: DocumentLimits,
) -> CorpusVectors:
    """The same corpus, with late vectors of documents that were read in segments."""
    placed = PlacedParts(documents, model.tokenizer, limits)
    read = [
        _read(model, one, of_document, inside)
        for one, of_document, inside in zip(documents, rows, placed.spans, strict=True)
    ]
    late = unit(np.concatenate([one[1:] for one in read]))

    def of_kind(parts: Parts, kind: PartKind) -> Parts:
        return replace(parts, late=late[placed.kinds == kind])

    return replace(
        vectors,
        openings=of_kind(vectors.openings, PartKind.FIRST_WORDS),
        found=of_kind(vectors.found, PartKind.FOUND),
        passages=of_kind(vectors.passages, PartKind.PASSAGE),
        chunks=of_kind(vectors.chunks, PartKind.CHUNK),
        wholes=unit(np.stack([one[0] for one in read])),
    )


def _read(
    model: EmbeddingModel,
    document: ReadingDocument,
    rows: Sequence[int],
    inside: Sequence[tuple[int, int]],
) -> Vectors:
    """The vector of the document, and one of each span."""
    length = len(document.ids)
    reading = SegmentedPass(
        model.encoder,
        document.ids.astype(np.int32),
        [SegmentReading(num_rows=count) for count in rows],
        length=length,
        keep_projections=False,
    )
    while not reading.is_done:
        reading.visit()
    pools = model.pools([(0, length), *inside], length)
    vectors: Vectors = pool(reading.states, pools, pooling_of(model)).cpu().numpy()
    return vectors


def _rows(
    whole: Sequence[CorpusVectors], parted: Sequence[CorpusVectors]
) -> Iterator[dict[str, Any]]:
    for question in QUESTIONS:
        ways = {"whole": WAYS["late"]} if question is WHOLE_BY_PARAGRAPH else WAYS
        for name, reading in ways.items():
            in_one, in_segments = (
                question.answers(corpora, reading) for corpora in (whole, parted)
            )
            differences = [minus(in_segments[corpus], in_one[corpus]) for corpus in in_one]
            measured = (list(in_one.values()), list(in_segments.values()), differences)
            shown = [asdict(found) for one in measured if (found := pooled(one)) is not None]
            if not shown:  # no corpus has two documents with such questions
                continue
            yield {
                "question": question.name,
                "reading": name,
                "questions": sum(len(one.values) for one in differences),
                **dict(zip(_SHOWN, shown, strict=True)),
            }


_SHOWN = ("in_one_piece", "in_segments", "difference")


def _show(found: dict[str, Any]) -> None:
    print(
        f"{found['documents']} documents of {len(found['corpora'])} corpora, {found['tokens']:,} "
        f"tokens; {found['of_several_segments']} have several segments\n"
    )
    print("| question | reading | questions | in one piece | in segments | difference |")
    print("|" + "---|" * 6)
    for row in found["rows"]:
        one, segments = row["in_one_piece"]["mean"], row["in_segments"]["mean"]
        difference = Interval(**row["difference"])
        print(
            f"| {row['question']} | {row['reading']} | {row['questions']} | {one:.3f} "
            f"| {segments:.3f} | {difference.mean:+.3f} "
            f"[{difference.low:+.3f}, {difference.high:+.3f}] |"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.living.segments", description=__doc__
    )
    parser.add_argument("--model", default="default")
    parser.add_argument("--corpora", nargs="*", help="default: all outside training")
    parser.add_argument("--cache", type=Path, help="a folder for vectors that are read again")
    parser.add_argument("--out", type=Path, required=True)
    return parser


if __name__ == "__main__":
    main()
