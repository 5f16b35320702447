"""Documents that grow from a half to the whole in steps of a twentieth, and what that costs.

    python -m benchmarks.growth read --out FILE
    python -m benchmarks.growth report FILE [FILE ...]

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
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks.store import commit
from benchmarks.volumes import volumes
from engine import Engine
from engine.evaluation.bootstrap import Answers, Interval, interval, minus
from engine.evaluation.corpora import available, load_corpus
from engine.evaluation.reading_documents import led_passages
from engine.evaluation.readings import CUTOFF
from engine.evaluation.retrieval import ranks_of
from engine.living.record_bytes import from_bytes
from engine.living_types import LivingEmbedding
from engine.training.data import Document
from engine.training.heading_passages import Passage, passages_of
from engine.types import ChunkPlan, Span

SEED = 11
LATE = ChunkPlan(tokens=256, context="late")
BEGINS, STEP = 0.5, 0.05
WAYS: Mapping[str, float | None] = {"grown": None, "held at 0.002": 0.002, "held at 0.01": 0.01}
"""How stale a chunk may be that is kept, in each way."""
QUESTIONS = 12  # of a document
ORACLE = 0.002
"""What the oracle keeps is never further off than this."""

_LEAST_LEFT = 0.8  # of a document's characters, once its headings are left out


class Grown(NamedTuple):
    """A document, its questions, and the characters that answer each."""

    corpus: str
    name: str
    text: str
    questions: list[str]
    answers: list[Span]


def main() -> None:
    options = _parser().parse_args()
    if options.action == "read":
        read(options)
    else:
        report(options.files, options.out)


def read(options: argparse.Namespace) -> None:
    done = {row["document"] for row in _rows([options.out])} if options.out.exists() else set()
    with Engine.load(options.model) as engine, options.out.open("a") as out:
        for document in _documents(options):
            if document.name in done:
                continue
            row, vectors = _case(engine, document, options.ways, oracle=options.oracle)
            about = {"corpus": document.corpus, "document": document.name, "model": options.model}
            about["calibration"] = engine.info.calibration
            save_file(vectors, _vectors_of(options.out, document.name))
            out.write(json.dumps({**about, **row, "commit": commit()}) + "\n")
            out.flush()


def _documents(options: argparse.Namespace) -> Iterator[Grown]:
    """Long documents of corpora outside training, in turn over the corpora."""
    names = options.corpora or available(new=True)
    found = [list(_long(name, options.least, options.most, options.documents)) for name in names]
    for number in range(options.documents):
        for documents in found:
            if number < len(documents):
                yield documents[number]


def _long(corpus: str, least: int, most: int, count: int) -> Iterator[Grown]:
    found = volumes(load_corpus(corpus).documents, least, 2 * count, SEED)
    grown = (_grown(corpus, chapters, most) for chapters in found)
    fair = (one for one in grown if len(one.text) >= _LEAST_LEFT * least and one.questions)
    yield from islice(fair, count)


def _grown(corpus: str, chapters: Sequence[Document], most: int) -> Grown:
    """The chapters without what their questions ask by, and not longer than `most` characters."""
    text, asked = "", []
    for chapter in chapters:
        text = f"{text}\n\n{chapter.title}".lstrip()
        for passage in passages_of(chapter) or led_passages(chapter) or [Passage("", chapter.body)]:
            if len(text) + len(passage.text) > most:
                break
            start = len(text) + 2
            text = f"{text}\n\n{passage.text}"
            if passage.query:
                asked.append((passage.query, Span(start, len(text))))
    chosen = asked[:: max(1, -(-len(asked) // QUESTIONS))]
    name = f"{corpus}/{chapters[0].name}"
    return Grown(corpus, name, text, [one for one, _ in chosen], [span for _, span in chosen])


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
    """Of each segment its characters, its tokens, and the vectors of its chunks."""
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


_HEAD = (
    *("read on", "chunks not read anew", "mean 1 - cosine", "worst", "within the bound"),
    *("whole, mean", "whole, worst"),
    *(
        "tokens read a step / reading anew",
        "of the worst document",
        "seconds a step / reading anew",
    ),
)


def report(files: Sequence[Path], out: Path | None) -> None:
    rows = [(row, file) for file in files for row in _rows([file])]
    tokens = [row["tokens"] for row, _ in rows]
    corpora = {row["corpus"] for row, _ in rows}
    of = f"{min(tokens):,} to {max(tokens):,} tokens, {len(corpora)} corpora"
    print(f"{len(rows)} documents of {of}\n")
    print("| " + " | ".join(_HEAD) + " |")
    print("|" + "---|" * len(_HEAD))
    ways = [way for way in WAYS if all(way in row for row, _ in rows)]
    for way in ways:
        print(_cells(way, [row for row, _ in rows]))
    if all("oracle" in row for row, _ in rows):
        cost = _oracle_cost([row for row, _ in rows])
        print(f"\nAn oracle that holds {ORACLE:g} reads {cost} of reading anew a step.")
    answers = {way: _answers(rows, way) for way in ("exact", *ways, "without")}
    print("\n| read on | MRR@10 | minus exact |\n|---|---|---|")
    for way, found in answers.items():
        difference = interval(minus(found, answers["exact"]))
        print(f"| {way} | {found.values.mean():.4f} | {_shown(difference)} |")
    print(f"\n{len(answers['exact'].values)} questions")
    if out is not None:
        owners = [rows[number][0]["document"] for number in answers["exact"].documents]
        ranks = {way: [round(value, 6) for value in one.values] for way, one in answers.items()}
        out.write_text(json.dumps({"documents": owners, "reciprocal_ranks": ranks}) + "\n")


def _cells(way: str, rows: Sequence[dict[str, Any]]) -> str:
    drift = np.concatenate([row[way]["drift"] for row in rows])
    stated = np.concatenate([row[way]["stated"] for row in rows])
    moved = stated > 0
    wholes = np.array([row[way]["whole"][0] for row in rows])
    # Of reading the document anew at each step.
    costs = [
        np.array([step["tokens_read"] / step["tokens"] for step in row[way]["steps"]])
        for row in rows
    ]
    seconds = [
        np.mean([step["seconds"] / step["tokens"] for step in row[way]["steps"]])
        / (row["exact_seconds"] / row["tokens"])
        for row in rows
    ]
    cells = (
        way,
        f"{moved.sum()} of {len(drift)}",
        f"{drift[moved].mean():.5f}",
        f"{drift.max():.5f}",
        f"{(drift[moved] <= stated[moved] + 1e-7).mean():.2%}",
        f"{wholes.mean():.5f}",
        f"{wholes.max():.5f}",
        f"{np.mean([one.mean() for one in costs]):.3f}",
        f"{max(one.mean() for one in costs):.3f}",
        f"{np.mean(seconds):.3f}",
    )
    return "| " + " | ".join(cells) + " |"


def _oracle_cost(rows: Sequence[dict[str, Any]]) -> str:
    shares = [
        np.mean([step["tokens_read"] / step["tokens"] for step in row["oracle"]]) for row in rows
    ]
    return f"{np.mean(shares):.3f} ({min(shares):.3f} to {max(shares):.3f} by document)"


def _answers(rows: Sequence[tuple[dict[str, Any], Path]], way: str) -> Answers:
    """The reciprocal rank of the chunk that has most of each answer, among all chunks of all."""
    chunks, questions, wanted, owners = [], [], [], []
    first = 0
    for number, (row, file) in enumerate(rows):
        stored = load_file(_vectors_of(file, row["document"]))
        chunks.append(stored[way])
        questions.append(stored["questions"])
        bounds = np.array(row["characters_without" if way == "without" else "characters"])
        for start, end in row["answers"]:
            overlap = np.minimum(bounds[:, 1], end) - np.maximum(bounds[:, 0], start)
            wanted.append(first + int(overlap.argmax()))
        owners += [number] * len(row["answers"])
        first += len(bounds)
    scores = np.concatenate(questions) @ np.concatenate(chunks).T
    ranks = ranks_of(scores, wanted)
    return Answers(np.where(ranks <= CUTOFF, 1 / ranks, 0.0), np.array(owners))


def _shown(found: Interval | None) -> str:
    assert found is not None, "there are questions"
    return f"{found.mean:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"


def _vectors_of(file: Path, document: str) -> Path:
    folder = file.with_suffix("")
    folder.mkdir(exist_ok=True)
    return folder / f"{document.replace('/', '_')}.safetensors"


def _rows(files: Sequence[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
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
