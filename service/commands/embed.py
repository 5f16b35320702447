"""`lln embed`."""

from __future__ import annotations

from pathlib import Path

from engine.errors import InvalidInput
from engine.types import EmbedOptions
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


def add(commands: Commands) -> None:
    command = add_command(commands, "embed", _embed, "embed texts, or files, without a server")
    command.add_argument("texts", nargs="*", metavar="TEXT", help="'-' reads standard input")
    command.add_argument("--file", action="append", default=[], type=Path, help="embed a file")
    command.add_argument("--dimensions", type=int, help="keep the first so many numbers")
    command.add_argument(
        "--truncate",
        choices=("error", "start", "end"),
        default="error",
        help="a text that is too long: refuse it (the default), or drop its start or its end",
    )
    add_model(command)
    add_json(command)


def _embed(chosen: Chosen) -> None:
    texts = [read_text(text) if text == "-" else text for text in chosen.texts]
    texts += [read_text(path) for path in chosen.file]
    if not texts:
        raise InvalidInput("nothing to embed: give a text, '-' for standard input, or --file")
    options = EmbedOptions(dimensions=chosen.dimensions, truncate=chosen.truncate)
    found = with_engine(chosen.model, lambda engine: engine.embed(texts, options=options))
    from service.http.vectors import accounting

    for embedding in found:
        vector = embedding.vector.tolist()
        if chosen.json:
            cost = accounting(embedding.accounting)
            print_json({"model": chosen.model, "embedding": vector, "accounting": cost})
        else:
            head = ", ".join(f"{number:+.4f}" for number in vector[:6])
            print(f"{embedding.accounting.tokens} tokens -> {len(vector)} numbers: {head}, ...")
