"""Documents that grow from a half to the whole in steps of a twentieth, and what that costs.

    python -m benchmarks.living.growth read --out FILE
    python -m benchmarks.living.growth report FILE [FILE ...]

After each step the document is read on from its record in three ways: with nothing kept ever read
again (`grown`), and with staleness held at 0.002 and at 0.01. At the end it is read anew (`exact`).
It is also read without a record, with blocks and positions that run on from its beginning to its
end (`without`), which shows what segments do by themselves.
`read` appends a line a document, with the vectors of the end and of the questions beside the file;
run again, it continues where it ended. `report` compares cosines, cost, and how well the passages
of all documents are found by their title and heading or first sentence, which they do not contain.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from benchmarks.living.growing_documents import Grown, growing_documents
from benchmarks.living.growth_report import report
from benchmarks.living.growth_rows import ORACLE, WAYS, read_rows, vectors_of
from benchmarks.store import commit
from engine import Engine
from engine.living.record_bytes import from_bytes
from engine.living_types import LivingEmbedding
from engine.types import ChunkPlan, Span

LATE = ChunkPlan(tokens=256, context="late")
BEGINS, STEP = 0.5, 0.05


def main() -> None:
    options = _parser().parse_args()
    if options.action == "read":
        read(options)
    else:
        report(options.files, options.out)


def read(options: argparse.Namespace) -> None:
    done = {row["document"] for row in read_rows([options.out])} if options.out.exists() else set()
    with Engine.load(options.model) as engine, options.out.open("a") as out:
        for document in growing_documents(
            options.corpora, least=options.least, most=options.most, count=options.documents
        ):
            if document.name in done:
                continue
            row, vectors = _case(engine, document, options.ways, oracle=options.oracle)
            about = {"corpus": document.corpus, "document": document.name, "model": options.model}
            about["calibration"] = engine.info.calibration
            save_file(vectors, vectors_of(options.out, document.name))
            out.write(json.dumps({**about, **row, "commit": commit()}) + "\n")
            out.flush()


def _case(
    engine: Engine, document: Grown, ways: Sequence[str], *, oracle: bool
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    text = document.text
    steps = [text[: _end(text, share)] for share in _shares()]
    begun = _read_anew(engine, steps[0])
    followed = {way: _followed(engine, begun, steps[1:], WAYS[way]) for way in ways}
    started_at = perf_counter()
    exact = _read_anew(engine, text)
    seconds = perf_counter() - started_at
    without = engine.embed_document(text, chunks=LATE)
    row = {
        "tokens": exact.tokens,
        "segments": exact.segments,
        "exact_seconds": seconds,
        **{
            way: {**_drift(found, exact), "steps": steps}
            for way, (found, steps) in followed.items()
        },
        "characters": [list(one.characters) for one in exact.chunks],
        "characters_without": [list(one.characters) for one in without.chunks],
        "whole_without": 1 - float(without.vector @ exact.vector),
        "answers": [list(span) for span in document.answers],
    }
    if oracle:
        between = [_read_anew(engine, step) for step in steps[1:-1]]
        row["oracle"] = _oracle([begun, *between, exact], engine)
    vectors = {
        name: np.stack([one.vector for one in found.chunks])
        for name, found in (
            *((way, found) for way, (found, _) in followed.items()),
            *(("exact", exact), ("without", without)),
        )
    }
    return row, {**vectors, "questions": engine.embed(document.questions)}


def _read_anew(engine: Engine, text: str) -> LivingEmbedding:
    return engine.embed_document(text, chunks=LATE, record=True)


def _oracle(readings: Sequence[LivingEmbedding], engine: Engine) -> list[dict[str, int]]:
    """What each step would read if it were known how far every kept chunk is from a new reading:
    new segments, and those of which a chunk is further off than `ORACLE`. No bound can do better.
    """
    kept: dict[Span, np.ndarray] = {}
    steps = []
    for reading in readings:
        read, held = 0, {}
        for characters, tokens, vectors in _segments_of(reading, engine):
            before = kept.get(characters)
            if before is None or (1 - (before * vectors).sum(1)).max() > ORACLE:
                before, read = vectors, read + tokens
            held[characters] = before
        kept = held
        steps.append({"tokens": reading.tokens, "tokens_read": read})
    return steps[1:]


def _segments_of(
    reading: LivingEmbedding, engine: Engine
) -> Iterator[tuple[Span, int, np.ndarray]]:
    """Each segment's characters, its tokens, and the vectors of its chunks."""
    start = first = 0
    for segment in from_bytes(reading.record, engine.model).segments:
        end, last = start + segment.num_characters, first + len(segment.chunks)
        vectors = [chunk.vector for chunk in reading.chunks[first:last]]
        yield Span(start, end), segment.num_rows, np.stack(vectors)
        start, first = end, last


def _followed(
    engine: Engine, begun: LivingEmbedding, steps: Sequence[str], limit: float | None
) -> tuple[LivingEmbedding, list[dict[str, Any]]]:
    found, costs = begun, []
    for text in steps:
        started_at = perf_counter()
        found = engine.update_document(found.record, text, max_staleness=limit)
        costs.append(
            {
                "tokens": found.tokens,
                "tokens_read": found.tokens_read,
                "rounds": found.rounds,
                "seconds": perf_counter() - started_at,
            }
        )
    return found, costs


def _drift(found: LivingEmbedding, exact: LivingEmbedding) -> dict[str, Any]:
    """1 - cosine to a fresh reading at the end, with what was stated of each chunk."""
    pairs = list(zip(found.chunks, exact.chunks, strict=True))
    return {
        "drift": [round(1 - float(a.vector @ b.vector), 8) for a, b in pairs],
        "stated": [round(a.staleness, 8) for a, _ in pairs],
        "whole": [1 - float(found.vector @ exact.vector), found.staleness],
    }


def _shares() -> list[float]:
    return [BEGINS + STEP * step for step in range(round((1 - BEGINS) / STEP) + 1)]


def _end(text: str, share: float) -> int:
    """The last end of a paragraph before this share of the text."""
    wanted = round(share * len(text))
    return wanted if wanted >= len(text) else text.rfind("\n\n", 0, wanted) + 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.living.growth", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    reader = actions.add_parser("read")
    reader.add_argument("--model", default="default")
    reader.add_argument("--least", type=int, default=45_000, help="characters of a document")
    reader.add_argument("--most", type=int, default=60_000, help="characters of a document")
    reader.add_argument("--corpora", nargs="*", help="default: all outside training")
    reader.add_argument("--documents", type=int, default=3, help="of each corpus")
    reader.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS), metavar="WAY")
    reader.add_argument("--oracle", action="store_true", help="read anew at every step too")
    reader.add_argument("--out", type=Path, required=True)
    reporter = actions.add_parser("report")
    reporter.add_argument("files", type=Path, nargs="+")
    reporter.add_argument("--out", type=Path, help="for the reciprocal rank of every question")
    return parser


if __name__ == "__main__":
    main()
