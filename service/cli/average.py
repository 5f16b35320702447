"""`lln average`: one model with the mean of the numbers of several."""

from __future__ import annotations

from service.cli.common import (
    Chosen,
    Commands,
    add_command,
    add_json,
    decimals,
    path_of,
    print_json,
)
from service.environment import load_settings


def add_average(commands: Commands) -> None:
    about = "write the mean of models that were trained from one checkpoint"
    command = add_command(commands, "average", _average, about)
    command.add_argument(
        "models", nargs="+", help="folders of `lln adapt`, or names that `lln models` lists"
    )
    command.add_argument("--out", type=path_of, required=True, help="the new model's folder")
    command.add_argument(
        "--shares",
        type=decimals,
        metavar="N,N,...",
        help="how much each model counts, relative to the others (default: all the same)",
    )
    add_json(command)


def _average(chosen: Chosen) -> None:
    from engine.training.average import average_models

    made = average_models(chosen.models, chosen.out, chosen.shares, config=load_settings().engine)
    if chosen.json:
        print_json({"folder": str(made)})
    else:
        print(f"{made}: `lln evaluate {made}` measures how good it is")
