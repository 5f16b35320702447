"""`lln claims`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from service.commands.base import (
    Chosen,
    Commands,
    add_command,
    add_json,
    add_model,
    print_json,
    read_text,
    with_engine,
)

if TYPE_CHECKING:
    from engine.claims import ClaimRow


def add(commands: Commands) -> None:
    command = add_command(commands, "claims", _claims, "check what papers claim of attention")
    command.add_argument(
        "--only",
        action="append",
        metavar="ID",
        help="a claim, or a paper by what its claims' ids begin with; may be repeated",
    )
    command.add_argument(
        "--text", type=Path, help="a document whose heads are looked at (default: Python's manual)"
    )
    command.add_argument("--thorough", action="store_true", help="more trials, and every head")
    command.add_argument("--markdown", action="store_true", help="print the page docs/claims.md")
    add_model(command)
    add_json(command)


def _claims(chosen: Chosen) -> None:
    from engine.claims import claims_page, find_claims
    from engine.claims.heads import document_start

    find_claims(chosen.only)  # a misspelt name should not cost the loading of a model
    text = read_text(chosen.text) if chosen.text else document_start()

    def show(row: ClaimRow) -> None:
        if not (chosen.json or chosen.markdown):
            said = "".join(f"\n    {text}" for text in (row.corrected, row.remark) if text)
            print(f"{row.verdict:<16}{row.id}: {row.statement}{said}", flush=True)

    rows = with_engine(
        chosen.model,
        lambda engine: engine.claims(
            only=chosen.only, text=text, thorough=chosen.thorough, progress=show
        ),
    )
    if chosen.json:
        print_json([asdict(row) for row in rows])
    elif chosen.markdown:
        print(claims_page(rows), end="")
