"""`lln figures`."""

from __future__ import annotations

import json
from pathlib import Path

from service.commands.base import (
    Chosen,
    Commands,
    add_command,
    add_json,
    add_model,
    with_engine,
)


def add(commands: Commands) -> None:
    about = "draw the LLN paper's figures from this code"
    command = add_command(commands, "figures", _figures, about)
    command.add_argument("--out", type=Path, required=True, help="the folder to write them to")
    command.add_argument("--only", action="append", metavar="NAME", help="a figure; repeatable")
    add_model(command)
    add_json(command)


def _figures(chosen: Chosen) -> None:
    from engine.claims.heads import document_start
    from engine.figures import draw_figures, find_figures

    find_figures(chosen.only)
    heads = with_engine(chosen.model, lambda engine: engine.head_samples(document_start()))
    for path in draw_figures(chosen.out, heads, only=chosen.only):
        print(json.dumps(str(path)) if chosen.json else path, flush=True)
