"""Search over a folder: seconds to index and to search, what a kill during indexing loses, and how
well documents are found by their words, by the vectors of their passages, and by both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from benchmarks.rows import Plan, Row, Target
from benchmarks.search.searched_folder import Indexing, Question, index, write_folder
from benchmarks.workbench import Workbench
from engine.engine import Engine
from engine.evaluation.bootstrap import Answers, Interval, interval, minus
from engine.types import Vector
from service.index.read_file import plan_of
from service.index.search import DEPTH, Ranked, Searcher, fuse
from service.index.store import IndexStore

DOCUMENTS, QUICK_DOCUMENTS = 2_000, 100
KILLED_AT = 0.4
"""Share of the files that are stored when the first run is killed."""
CHANGED = 20
CHECKED = 20
"""Files whose vectors are compared with those of a fresh reading."""
TIMED = 200
CUTOFF = 10
USUAL_K = 60
KS = (1, 2, 5, 10, 20, 40, 60, 100, 200)
WORDS, VECTORS, BOTH = "words (BM25)", "vectors", "both"


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    with TemporaryDirectory() as temporary:
        folder, place = Path(temporary) / "documents", Path(temporary) / "index"
        questions = write_folder(folder, QUICK_DOCUMENTS if plan.quick else DOCUMENTS)
        case = f"{len(questions):,} documents"
        yield from _indexing(bench, case, folder, place, questions)
        with IndexStore.open(place) as store:
            searcher = Searcher(store)
            yield from _seconds(bench.lln_diag, case, searcher, questions)
            found = _Found.of(bench.lln_diag, store, searcher, questions)
        yield from _quality(case, found)


def _indexing(
    bench: Workbench, case: str, folder: Path, place: Path, questions: Sequence[Question]
) -> Iterator[Row]:
    killed = index(folder, place, threads=bench.threads, kill_at=round(KILLED_AT * len(questions)))
    resumed = index(folder, place, threads=bench.threads)
    yield from _after_the_kill(case, killed, resumed, len(questions))
    with IndexStore.open(place) as store:
        tokens = store.totals().tokens
        differing = _differing(bench.lln_diag, store, folder, questions)
    yield Row(
        case=case,
        measure=f"files of {CHECKED} whose vectors are not those of a fresh reading, to the bit",
        value=differing,
        target=Target("<=", 0),
        seconds={},
    )
    seconds = killed.seconds + resumed.seconds
    yield Row(
        case=case,
        measure="tokens a second to index, with two starts; times are of both runs",
        value=tokens / seconds,
        seconds={"killed": (killed.seconds,), "resumed": (resumed.seconds,)},
        note=f"{tokens} tokens",
    )
    unchanged = index(folder, place, threads=bench.threads)
    yield _seconds_row(case, "s to look again when nothing changed", unchanged.seconds)
    for question in questions[:CHANGED]:
        with (folder / question.file).open("a") as file:
            file.write("\n\nOne more paragraph, which nobody has read before.\n")
    changed = index(folder, place, threads=bench.threads)
    yield _seconds_row(case, f"s to take in {CHANGED} changed files", changed.seconds)
    yield Row(
        case=case,
        measure=f"files read when {CHANGED} changed",
        value=changed.summary["read"],
        target=Target("<=", CHANGED),
        seconds={},
    )


def _after_the_kill(case: str, killed: Indexing, resumed: Indexing, wanted: int) -> Iterator[Row]:
    missing = wanted - resumed.stored
    read_twice = killed.stored - resumed.summary["unchanged"]
    for what, number in (("are missing", missing), ("are read twice", read_twice)):
        yield Row(
            case=case,
            measure=f"files that {what} after a kill with {killed.stored} stored and a second run",
            value=number,
            target=Target("<=", 0),
            seconds={},
        )


def _differing(
    engine: Engine, store: IndexStore, folder: Path, questions: Sequence[Question]
) -> int:
    ids, matrix = store.vectors()
    of_files: dict[str, list[int]] = {}
    for at, chunk in enumerate(ids.tolist()):
        passage = store.passage(chunk)
        assert passage is not None, "nobody writes to the index"
        of_files.setdefault(passage.path, []).append(at)
    differing = 0
    for question in questions[:: max(1, len(questions) // CHECKED)][:CHECKED]:
        text = (folder / question.file).read_text()
        fresh = engine.embed_document(text, chunks=plan_of(store.recipe))
        vectors = np.stack([chunk.vector for chunk in fresh.chunks])
        differing += not np.array_equal(vectors, matrix[of_files[question.file]])
    return differing


def _seconds_row(case: str, measure: str, seconds: float) -> Row:
    return Row(case=case, measure=measure, value=seconds, seconds={"run": (seconds,)})


def _seconds(
    engine: Engine, case: str, searcher: Searcher, questions: Sequence[Question]
) -> Iterator[Row]:
    def both(query: str) -> None:
        searcher.search(query, engine.embed([query])[0], limit=10)

    ways: Mapping[str, Callable[[str], object]] = {
        WORDS: lambda query: searcher.search(query, None, limit=10, ways="words"),
        BOTH: both,
    }
    both(questions[0].query)  # reads the vectors into memory
    for way, search in ways.items():
        taken = []
        for question in questions[:TIMED]:
            started_at = perf_counter()
            search(question.query)
            taken.append(perf_counter() - started_at)
        p50, p99 = np.quantile(taken, (0.5, 0.99))
        yield Row(
            case=case,
            measure=f"ms to search by {way}, the query's vector included, p50; times are p50 / p99",
            value=float(p50) * 1e3,
            seconds={"p50": (float(p50),), "p99": (float(p99),)},
        )


@dataclass(frozen=True)
class _Found:
    """What each question finds in both ways."""

    questions: Sequence[Question]
    words: list[Ranked]
    vectors: list[Ranked]
    file_of: dict[int, str]
    recall: float
    """The share of the ten best by vectors that a comparison in float64 finds too."""

    @classmethod
    def of(
        cls, engine: Engine, store: IndexStore, searcher: Searcher, questions: Sequence[Question]
    ) -> _Found:
        queries = engine.embed([question.query for question in questions])
        words = [searcher.by_words(question.query, DEPTH) for question in questions]
        vectors = [searcher.by_vectors(query, DEPTH) for query in queries]
        ids, matrix = store.vectors()
        file_of = {
            chunk: passage.path for chunk in ids.tolist() if (passage := store.passage(chunk))
        }
        return cls(questions, words, vectors, file_of, _recall(queries, ids, matrix, vectors))

    def reciprocal_ranks(self, way: Callable[[int], Ranked], *, validates: bool) -> Answers:
        chosen = [at for at, one in enumerate(self.questions) if one.validates is validates]
        values = [self._reciprocal_rank(way(at), self.questions[at].file) for at in chosen]
        return Answers(np.array(values), np.array(chosen, np.int64))

    def fused(self, k: int) -> Callable[[int], Ranked]:
        return lambda at: fuse([self.words[at], self.vectors[at]], k)

    def _reciprocal_rank(self, ranked: Ranked, wanted: str) -> float:
        """The reciprocal rank of a file among the files of the passages that were found."""
        files = list(dict.fromkeys(self.file_of[chunk] for chunk, _ in ranked))[:CUTOFF]
        return 1 / (files.index(wanted) + 1) if wanted in files else 0.0


def _recall(
    queries: Vector, ids: NDArray[np.int64], matrix: Vector, vectors: Sequence[Ranked]
) -> float:
    exact = matrix.astype(np.float64)
    shares = []
    for query, ranked in zip(queries, vectors, strict=True):
        best = set(ids[np.argsort(-(exact @ query.astype(np.float64)))[:CUTOFF]].tolist())
        shares.append(len(best & {chunk for chunk, _ in ranked[:CUTOFF]}) / len(best))
    return float(np.mean(shares))


def _quality(case: str, found: _Found) -> Iterator[Row]:
    yield Row(
        case=case,
        measure=f"recall@{CUTOFF} of the search by vectors against brute force in float64",
        value=found.recall,
        target=Target(">=", 0.99),
        seconds={},
    )
    on_validation = {
        k: found.reciprocal_ranks(found.fused(k), validates=True).values.mean() for k in KS
    }
    k = max(on_validation, key=lambda one: float(on_validation[one]))
    for one, mrr in on_validation.items():
        measure = f"validation half: {BOTH}, k = {one}, MRR@{CUTOFF}"
        yield Row(case=case, measure=measure, value=float(mrr), seconds={})
    ways = {
        WORDS: lambda at: found.words[at],
        VECTORS: lambda at: found.vectors[at],
        f"{BOTH}, k = {USUAL_K}": found.fused(USUAL_K),
    }
    best = found.reciprocal_ranks(found.fused(k), validates=False)
    name = f"{BOTH}, k = {k}"
    yield _mrr_row(case, f"test half: {name}, MRR@{CUTOFF}, 95 % interval", interval(best))
    for way, ranked in ways.items():
        answers = found.reciprocal_ranks(ranked, validates=False)
        yield _mrr_row(case, f"test half: {way}, MRR@{CUTOFF}, 95 % interval", interval(answers))
        if way != name:
            difference = interval(minus(best, answers))
            yield _mrr_row(case, f"test half: {name} minus {way}, 95 % interval", difference)


def _mrr_row(case: str, measure: str, found: Interval | None) -> Row:
    assert found is not None, "there are questions in each half"
    spread = (found.low, found.high)
    return Row(case=case, measure=measure, value=found.mean, seconds={}, spread=spread)
