"""`lln bench`."""

from __future__ import annotations

from pathlib import Path

from service.commands.base import (
    Chosen,
    Commands,
    add_command,
    add_json,
    add_model,
    names,
    numbers,
    with_engine,
)


def add(commands: Commands) -> None:
    command = add_command(commands, "bench", _bench, "measure this machine by length of text")
    command.add_argument("--suite", default="encoder", help="attention, encoder, serving, quality")
    command.add_argument(
        "--lengths", type=numbers, metavar="N,N,...", help="tokens (default: the suite's own)"
    )
    command.add_argument(
        "--attentions", type=names, metavar="NAME,NAME,...", help="default: the suite's own"
    )
    command.add_argument(
        "--dtypes", type=names, metavar="NAME,NAME,...", help="default: the model's own"
    )
    command.add_argument("--repeats", type=int, help="turns of each measurement")
    command.add_argument("--training", action="store_true", help="time a step of training")
    command.add_argument("--seconds", type=float, help="of the serving suite: for each load")
    command.add_argument("--server", metavar="URL", help="of the serving suite: what it loads")
    command.add_argument("--out", type=Path, help="folder for the rows as JSON, CSV and a picture")
    add_model(command)
    add_json(command)


def _bench(chosen: Chosen) -> None:
    from service.benchmarks.shell import bench

    with_engine(chosen.model, lambda engine: bench(engine, chosen))
