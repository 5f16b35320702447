"""`lln embed`, `lln plan` and `lln models`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from engine.errors import InvalidInput, LLNError
from engine.types import Context, EmbedOptions
from service.cli.bulk import add_bulk_options, embed_corpus
from service.cli.common import (
    Chosen,
    Commands,
    add_command,
    add_json,
    add_model,
    numbers,
    path_of,
    print_json,
    print_table,
    printable,
    read_text,
    with_engine,
)

if TYPE_CHECKING:
    from engine.async_engine import AsyncEngine
    from engine.types import Plan


_IS_A_FILE = """{path} is the path of a file, but a text was expected
To embed what the file holds: lln embed --file {path}
To embed the path itself as a text: lln embed --text {path}"""

_INPUT = re.compile(r"input\[(\d+)\]")


class _Source(NamedTuple):
    """A text to embed, and the file and line it comes from, which the output repeats."""

    text: str
    origin: dict[str, str | int]

    @property
    def name(self) -> str:
        return ":".join(map(str, self.origin.values()))


def add_embed(commands: Commands) -> None:
    command = add_command(commands, "embed", _embed, "embed texts, or files, without a server")
    command.add_argument(
        "texts",
        nargs="*",
        metavar="TEXT",
        help="texts; '-' reads standard input to its end, as one text unless --lines is given",
    )
    several: Any = {"nargs": "+", "action": "extend", "default": []}
    command.add_argument(
        "--text", **several, help="embed these texts, even if they are paths of files"
    )
    command.add_argument(
        "--file",
        **several,
        metavar="PATH",
        help="embed these files, each as one text; '-' is standard input",
    )
    command.add_argument(
        "--lines",
        action="store_true",
        help="each line of standard input or of a file is a text; empty lines are skipped",
    )
    command.add_argument("--dimensions", type=int, help="keep only the first N numbers")
    command.add_argument(
        "--truncate",
        choices=("error", "start", "end"),
        default="error",
        help="a text that is too long: refuse it (the default), or drop its start or its end",
    )
    add_model(command)
    add_json(command)
    add_bulk_options(command)


def _embed(chosen: Chosen) -> None:
    if chosen.sources or chosen.out is not None:
        _check_bulk_alone(chosen)
        embed_corpus(chosen)
        return
    sources = _sources(chosen)
    texts = [source.text for source in sources]
    options = EmbedOptions(dimensions=chosen.dimensions, truncate=chosen.truncate)
    with _named(sources):
        found = with_engine(chosen.model, lambda engine: engine.embed(texts, options=options))
    from service.http.json_response import accounting

    for source, embedding in zip(sources, found, strict=True):
        vector = embedding.vector.tolist()
        if chosen.json:
            cost = accounting(embedding.accounting)
            print_json(
                {"model": chosen.model, **source.origin, "embedding": vector, "accounting": cost}
            )
        else:
            name = printable(source.name)
            shown = [f"{number:+.4f}" for number in vector[:6]]
            head = ", ".join(shown + ["..."] * (len(vector) > len(shown)))
            summary = f"{embedding.accounting.tokens} tokens -> {len(vector)} numbers: {head}"
            print(f"{name}: {summary}" if name else summary)


@contextmanager
def _named(sources: Sequence[_Source]) -> Iterator[None]:
    """Errors name the file and the line of a text, not its place among all texts."""
    try:
        yield
    except LLNError as error:
        place = _INPUT.fullmatch(error.param or "")
        name = sources[int(place[1])].name if place else ""
        if not name:
            raise
        about = error.with_param(name)
        if about.message == error.message:  # it does not say which text
            about = error.about(name, message=f"{name}: {error.message}")
        raise about from error


def _check_bulk_alone(chosen: Chosen) -> None:
    for name, switch in (("texts", "texts"), ("text", "--text"), ("file", "--file")):
        if getattr(chosen, name):
            raise InvalidInput(f"{switch} cannot be combined with --from and --out")
    if chosen.lines:
        raise InvalidInput("with --from, lines are read by --format lines")


def _sources(chosen: Chosen) -> list[_Source]:
    given = [name for name in ("texts", "text", "file") if getattr(chosen, name)]
    if not given:
        raise InvalidInput("nothing to embed: give a text, '-' for standard input, or --file")
    if len(given) > 1:
        switches = {"texts": "texts without a switch", "text": "--text", "file": "--file"}
        combined = " and ".join(switches[name] for name in given)
        raise InvalidInput(f"{combined} cannot be combined: run lln embed once for each")
    if chosen.lines and not chosen.file and "-" not in chosen.texts:
        raise InvalidInput(
            "--lines needs something to read: give '-' for standard input, or --file"
        )
    sources = [_Source(text, {}) for text in chosen.text]
    for text in chosen.texts:
        if text == "-":
            sources += _read(text, {}, lines=chosen.lines)
        elif _is_file(text):
            raise InvalidInput(_IS_A_FILE.format(path=shlex.quote(text)))
        else:
            sources.append(_Source(text, {}))
    for path in chosen.file:
        sources += _read(path, {"file": path}, lines=chosen.lines)
    if not sources:
        raise InvalidInput("nothing to embed: every line is empty")
    return sources


def _read(file: str, origin: dict[str, str | int], *, lines: bool) -> list[_Source]:
    text = read_text(file)
    if not lines:
        return [_Source(text, origin)]
    # splitlines would also split at a form feed and at other characters inside a line.
    numbered = enumerate((line.removesuffix("\r") for line in text.split("\n")), start=1)
    return [_Source(line, origin | {"line": number}) for number, line in numbered if line.strip()]


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # too long for a path
        return False


def add_plan(commands: Commands) -> None:
    command = add_command(commands, "plan", _plan, "time and memory that texts would take here")
    command.add_argument(
        "tokens",
        type=numbers,
        nargs="?",
        metavar="TOKENS,TOKENS,...",
        help="numbers of tokens, special tokens included",
    )
    command.add_argument(
        "--context",
        choices=get_args(Context),
        help="plan documents with chunks of 256 tokens and this context",
    )
    command.add_argument(
        "--without-vector",
        action="store_true",
        help="with --context: plan chunks alone, without the document's own vector",
    )
    command.add_argument(
        "--record",
        type=path_of,
        metavar="FILE",
        help="plan the update of the document in --file from this record",
    )
    command.add_argument("--file", type=path_of, metavar="FILE", help="with --record: the document")
    add_model(command)
    add_json(command)


def _plan(chosen: Chosen) -> None:
    _check_what_to_plan(chosen)

    async def plans(engine: AsyncEngine) -> list[Plan]:
        if chosen.record is not None:
            record = chosen.record.read_bytes()
            return [await engine.plan_update(record, read_text(chosen.file))]
        vector = not chosen.without_vector
        return [
            await engine.plan(tokens, context=chosen.context, vector=vector)
            for tokens in chosen.tokens
        ]

    found = with_engine(chosen.model, plans)
    if chosen.json:
        print_json([asdict(plan) for plan in found])
    else:
        _print_plans(found)
    refused = [plan for plan in found if not plan.fits]
    if refused:
        raise InvalidInput("\n".join(map(_why_refused, refused)))


def _check_what_to_plan(chosen: Chosen) -> None:
    if (chosen.record is None) != (chosen.file is None):
        raise InvalidInput("planning an update needs both --record and --file")
    if (chosen.tokens is None) == (chosen.record is None):
        raise InvalidInput("give numbers of tokens, or --record and --file")
    if chosen.record is not None and chosen.context is not None:
        raise InvalidInput("--context cannot be combined with --record, which has its own")
    if chosen.without_vector and chosen.context is None:
        raise InvalidInput("--without-vector plans chunks alone, and needs --context")


def _why_refused(plan: Plan) -> str:
    if plan.tokens > plan.max_tokens:
        return f"{plan.tokens} tokens do not fit: {plan.model} reads at most {plan.max_tokens}"
    return (
        f"{plan.tokens} tokens do not fit: they need {plan.bytes / 1e6:.1f} megabytes, "
        f"the limit here is {plan.max_bytes / 1e6:.1f}"
    )


def _print_plans(found: list[Plan]) -> None:
    head = f"{'tokens':>10} {'read':>10} {'path':>7} {'megabytes':>10} {'seconds':>8} {'fits':>5}"
    print(head)
    for plan in found:
        fits = "yes" if plan.fits else "no"
        megabytes = plan.bytes / 1e6
        print(
            f"{plan.tokens:>10} {plan.tokens_read:>10} {plan.path:>7} {megabytes:>10.1f} "
            f"{plan.seconds:>8.2f} {fits:>5}"
        )


def add_models(commands: Commands) -> None:
    add_json(add_command(commands, "models", _models, "list the models on this machine"))


def _models(chosen: Chosen) -> None:
    from engine.checkpoint.locate import list_models
    from engine.platform.device import possible_precisions

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
    print(f"\nPrecisions on this CPU (LLN_ENGINE__DTYPE): {', '.join(possible_precisions())}")
