"""`lln diagnose`."""

from __future__ import annotations

from service.commands.base import (
    Chosen,
    Commands,
    add_command,
    add_json,
    add_model,
    names,
    numbers,
    print_json,
    read_text,
    with_engine,
)


def add(commands: Commands) -> None:
    command = add_command(commands, "diagnose", _diagnose, "measure the attention of a text")
    command.add_argument("file", help="a text file; '-' reads standard input")
    command.add_argument("--layers", type=numbers, metavar="N,N,...", help="default: all")
    command.add_argument("--heads", type=numbers, metavar="N,N,...", help="default: all")
    command.add_argument(
        "--instruments",
        type=names,
        metavar="NAME,NAME,...",
        help="default: all; GET /v1/diagnostics/instruments of a server tells what they are",
    )
    command.add_argument(
        "--mode",
        default="auto",
        help="auto, exact or sampled, where exactness costs all pairs of tokens (default: auto)",
    )
    add_model(command)
    add_json(command)


def _diagnose(chosen: Chosen) -> None:
    text = read_text(chosen.file)
    found = with_engine(
        chosen.model,
        lambda engine: engine.diagnose(
            text,
            layers=chosen.layers,
            heads=chosen.heads,
            instruments=chosen.instruments,
            mode=chosen.mode,
        ),
    )
    if chosen.json:
        from service.http.diagnostics import diagnosis_document

        print_json(diagnosis_document(found))
        return
    from service.diagnosis_table import diagnosis_lines

    print("\n".join(diagnosis_lines(found)))
