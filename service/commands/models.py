"""`lln models`."""

from __future__ import annotations

from dataclasses import asdict

from service.commands.base import (
    Chosen,
    Commands,
    add_command,
    add_json,
    print_json,
    print_table,
)


def add(commands: Commands) -> None:
    add_json(add_command(commands, "models", _models, "list the models that are here"))


def _models(chosen: Chosen) -> None:
    from engine.checkpoint.sources import list_models

    found = list_models()
    if chosen.json:
        print_json([asdict(model) | {"place": str(model.place)} for model in found])
        return
    head = ("NAME", "ATTENTION", "ALIASES", "SOURCE", "PLACE")
    rows = (
        (model.name, model.attention, ", ".join(model.aliases), model.source, str(model.place))
        for model in found
    )
    print_table([head, *rows])
