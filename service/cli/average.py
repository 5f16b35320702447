"""`lln average`: one model with the mean of the numbers of several."""

from __future__ import annotations

import argparse
from pathlib import Path

from service.cli.common import Chosen, Commands, add_command, add_json, print_json
from service.environment import load_settings


def add_average(commands: Commands) -> None:
    about = "write the mean of models that were trained from one checkpoint"
    command = add_command(commands, "average", _average, about)
    command.add_argument(
        "models", nargs="+", help="folders of `lln adapt`, or names that `lln models` lists"
    )
    command.add_argument("--out", type=Path, required=True, help="the new model's folder")
    command.add_argument(
        "--shares",
        type=_numbers,
        metavar="N,N,...",
        help="how much each model counts, relative to the others (default: all the same)",
    )
    add_json(command)


def _numbers(value: str) -> list[float]:
    try:
        return [float(number) for number in value.split(",")]
    except ValueError:
        message = f"expected numbers separated by commas, got {value!r}"
        raise argparse.ArgumentTypeError(message) from None


def _average(chosen: Chosen) -> None:
    from engine.training.average import average_models

    made = average_models(chosen.models, chosen.out, chosen.shares, config=load_settings().engine)
    if chosen.json:
        print_json({"folder": str(made)})
    else:
        print(f"{made}: `lln evaluate {made}` measures how good it is")
