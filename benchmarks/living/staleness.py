"""How stale kept chunks are after edits, and what the engine says: fits the bound, or judges it.

    python -m benchmarks.living.staleness read --part fit --out FILE    # corpora trained on
    python -m benchmarks.living.staleness read --part judge --out FILE  # other corpora
    python -m benchmarks.living.staleness fit FILE                      # the stored factors
    python -m benchmarks.living.staleness widen FILE [FILE ...]         # by documents that grew
    python -m benchmarks.living.staleness least FILE [FILE ...]         # by long documents
    python -m benchmarks.living.staleness judge FILE [FILE ...]

`read` compares kept chunks after each edit with the same document read anew, and appends a line an
edit; run again, it continues where it ended. Factors are fitted on some corpora, judged on others.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.living.edits import EDITS
from benchmarks.living.volumes import volumes
from benchmarks.store import ROOT, commit
from engine import Engine
from engine.evaluation.corpora import available, load_corpus
from engine.living.record_bytes import from_bytes
from engine.living.staleness import LEAST, movement
from engine.living_types import LivingEmbedding
from engine.training.data import Document
from engine.types import ChunkPlan

SEED = 11
CHARACTERS = 24_000
"""Characters of a document that is read: some 5,000 tokens."""
LATE = ChunkPlan(tokens=256, context="late")
SHARE = 0.99
_TRIED = (0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.01)
"""Of these the least staleness to state is the first that is enough."""
MEASURED = ROOT / "engine" / "living" / "staleness.json"


def main() -> None:
    options = _parser().parse_args()
    if options.action == "read":
        read(options)
    elif options.action == "fit":
        fit(options.files)
    elif options.action == "widen":
        widen(options.files)
    elif options.action == "least":
        least(options.files)
    else:
        judge(options.files)


def read(options: argparse.Namespace) -> None:
    done = {_key(row) for row in _rows([options.out])} if options.out.exists() else set()
    with Engine.load(options.model) as engine, options.out.open("a") as out:
        for corpus, number, text, other in _documents(options):
            read_before: dict[str, LivingEmbedding] = {}
            for kind in EDITS:
                row = {"corpus": corpus, "document": number, "kind": kind}
                if _key(row) in done:
                    continue
                row |= {"model": options.model, "calibration": engine.info.calibration}
                before, after = EDITS[kind](text, other, Random(f"{SEED}{corpus}{number}"))
                if before not in read_before:
                    read_before[before] = engine.embed_document(before, chunks=LATE, record=True)
                row |= _case(engine, read_before[before], after)
                row["commit"] = commit()
                out.write(json.dumps(row) + "\n")
                out.flush()


def _documents(options: argparse.Namespace) -> Iterator[tuple[str, int, str, str]]:
    """Long documents of each corpus, each with another of its corpus, in turn over the corpora."""
    names = options.corpora or available(new=options.part == "judge")
    texts = {name: _long(name, max(2, options.documents), options.characters) for name in names}
    for number in range(options.documents):
        for corpus, found in texts.items():
            if number < len(found):
                yield corpus, number, found[number], found[number - 1]


def _long(corpus: str, count: int, characters: int) -> list[str]:
    documents = load_corpus(corpus).documents
    if characters > CHARACTERS:
        found = volumes(documents, characters, count, SEED)
        return ["\n\n".join(map(_text, chapters))[:characters] for chapters in found]
    texts = [_text(one) for one in documents if len(one.body) >= characters // 2]
    return [text[:characters] for text in Random(SEED).sample(texts, min(count, len(texts)))]


def _text(document: Document) -> str:
    return f"{document.title}\n\n{document.body}"


def _case(engine: Engine, first: LivingEmbedding, after: str) -> dict[str, Any]:
    update = engine.update_document(first.record, after)
    anew = engine.update_document(first.record, after, exact=True)
    record = from_bytes(update.record, engine.model)
    *earlier, now = record.views
    return {
        "tokens": update.tokens,
        "tokens_read": update.tokens_read,
        "moved": [list(movement(then, now, engine.model)) for then in earlier],
        "kept": [
            round(1 - float(kept.vector @ fresh.vector), 8)
            for kept, fresh in zip(update.chunks, anew.chunks, strict=True)
            if kept.previous is not None
        ],
        "stated": [one.staleness for one in update.chunks if one.previous is not None],
        "whole": [1 - float(update.vector @ anew.vector), update.staleness],
    }


def fit(files: Sequence[Path]) -> None:
    """The factors of each calibration: least squares without negative factors, then all of them
    larger until the bound holds for the share of chunks in every corpus."""
    measured = json.loads(MEASURED.read_text())
    for calibration, rows in _by_calibration(files).items():
        measured[calibration] = {"factors": _fitted(rows), "least": LEAST}
        print(calibration[:12], measured[calibration])
    MEASURED.write_text(json.dumps(measured, indent=1) + "\n")


def least(files: Sequence[Path]) -> None:
    """The least staleness to state: with it the bound holds for the share of chunks in every
    corpus. In long documents an edit hardly moves the sketches, so the factors say too little."""
    measured = json.loads(MEASURED.read_text())
    for calibration, rows in _by_calibration(files).items():
        factors = np.array(measured[calibration]["factors"])
        stated = np.array([row["moved"][0] for row in rows]) @ factors
        found = least_for(rows, stated)
        measured[calibration]["least"] = found
        num_chunks = sum(len(row["kept"]) for row in rows)
        print(calibration[:12], f"at least {found:g}, by {num_chunks} chunks")
    MEASURED.write_text(json.dumps(measured, indent=1) + "\n")


def _by_calibration(files: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    """The edits of each calibration that left something to keep."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in _rows(files):
        if row["moved"] and row["kept"]:
            found.setdefault(row["calibration"], []).append(row)
    return found


def least_for(rows: Sequence[dict[str, Any]], stated: np.ndarray) -> float:
    for tried in _TRIED:
        ratios = _ratios(rows, np.maximum(stated, tried)).values()
        if min(float((one <= 1).mean()) for one in ratios) >= SHARE:
            return tried
    raise ValueError(f"more than {_TRIED[-1]:g} would have to be stated")


def widen(files: Sequence[Path]) -> None:
    """Makes the stored factors larger until the bound holds for the share of chunks of documents
    that grew (rows of `benchmarks.living.growth`, read with these factors). One edit says nothing
    of segments that were read beside others that were stale."""
    measured = json.loads(MEASURED.read_text())
    ratios: dict[str, list[np.ndarray]] = {}
    for row in _rows(files):
        for way in (one for one in row.values() if isinstance(one, dict) and "stated" in one):
            drift, stated = np.array(way["drift"]), np.array(way["stated"])
            ratios.setdefault(row["calibration"], []).append(drift[stated > 0] / stated[stated > 0])
    for calibration, found in ratios.items():
        scale = float(np.quantile(np.concatenate(found), SHARE))
        print(calibration[:12], f"{sum(map(len, found))} chunks, {SHARE:.0%} within {scale:.2f}")
        if scale > 1:
            own = measured[calibration]
            own["factors"] = [float(f"{one * scale:.4g}") for one in own["factors"]]
    MEASURED.write_text(json.dumps(measured, indent=1) + "\n")


def _fitted(rows: Sequence[dict[str, Any]]) -> list[float]:
    moved = np.array([row["moved"][0] for row in rows])
    # A case's worst chunks decide, and relative errors count.
    worst = np.array([max(np.quantile(row["kept"], SHARE), 1e-7) for row in rows])
    factors = _least_squares(moved / worst[:, None])
    scale = max(
        float(np.quantile(ratios, SHARE)) for ratios in _ratios(rows, moved @ factors).values()
    )
    return [float(f"{factor * scale:.4g}") for factor in factors]


def _least_squares(relative: np.ndarray) -> np.ndarray:
    """The factors [n], none negative, whose sums come nearest to 1 in each row: the best of all
    choices of features, of which there are few."""
    best, least = np.zeros(relative.shape[1]), np.inf
    for chosen in product((False, True), repeat=relative.shape[1]):
        columns = np.flatnonzero(chosen)
        if not len(columns):
            continue
        found, *_ = np.linalg.lstsq(relative[:, columns], np.ones(len(relative)), rcond=None)
        error = float(((relative[:, columns] @ found - 1) ** 2).sum())
        if (found >= 0).all() and error < least:
            best, least = np.zeros(relative.shape[1]), error
            best[columns] = found
    return best


def _ratios(rows: Sequence[dict[str, Any]], stated: np.ndarray) -> dict[str, np.ndarray]:
    """Each kept chunk's staleness over the stated one, by corpus."""
    found: dict[str, list[float]] = {}
    for row, bound in zip(rows, stated, strict=True):
        found.setdefault(row["corpus"], []).extend(value / bound for value in row["kept"])
    return {corpus: np.array(values) for corpus, values in found.items()}


def judge(files: Sequence[Path]) -> None:
    rows = [row for row in _rows(files) if row["kept"]]
    print("| edit | chunks kept | mean 1 - cosine | worst | within the bound | bound / true |")
    print("|---|---|---|---|---|---|")
    for kind in (*EDITS, None):
        chosen = [row for row in rows if kind in (row["kind"], None)]
        if not chosen:
            continue
        true = np.concatenate([row["kept"] for row in chosen])
        stated = np.concatenate([row["stated"] for row in chosen])
        cells = (
            f"{kind or 'all'}",
            f"{len(true)}",
            f"{true.mean():.5f}",
            f"{true.max():.5f}",
            f"{(true <= stated + 1e-7).mean():.2%}",
            f"{np.median(stated / np.maximum(true, 1e-7)):.1f}",
        )
        print("| " + " | ".join(cells) + " |")
    whole = np.array([row["whole"] for row in rows])
    print(
        f"\nWhole documents: mean {whole[:, 0].mean():.6f}, worst {whole[:, 0].max():.6f}, "
        f"within the bound {(whole[:, 0] <= whole[:, 1] + 1e-7).mean():.2%}"
    )


def _rows(files: Sequence[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def _key(row: dict[str, Any]) -> tuple[str, int, str]:
    return row["corpus"], row["document"], row["kind"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.living.staleness", description=__doc__
    )
    actions = parser.add_subparsers(dest="action", required=True)
    reader = actions.add_parser("read")
    reader.add_argument("--part", choices=("fit", "judge"), required=True)
    reader.add_argument("--model", default="default")
    reader.add_argument("--corpora", nargs="*", help="all of the part unless given")
    reader.add_argument("--documents", type=int, default=2, help="of each corpus")
    reader.add_argument(
        "--characters",
        type=int,
        default=CHARACTERS,
        help="of a document; beyond the default, short documents are put together",
    )
    reader.add_argument("--out", type=Path, required=True)
    for name in ("fit", "widen", "least", "judge"):
        actions.add_parser(name).add_argument("files", type=Path, nargs="+")
    return parser


if __name__ == "__main__":
    main()
