"""What it costs to read growing documents on, how far off chunks are, and how well they are found.

It reads the rows that `benchmarks.living.growth` writes, and the vectors beside them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from benchmarks.living.growth_rows import ORACLE, WAYS, read_rows, vectors_of
from engine.evaluation.bootstrap import Answers, Interval, interval, minus
from engine.evaluation.rankings import ranks_of
from engine.evaluation.readings import CUTOFF

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
    rows = [(row, file) for file in files for row in read_rows([file])]
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
        stored = load_file(vectors_of(file, row["document"]))
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
