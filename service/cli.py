"""The command line: `lln serve | embed | plan | models | adapt | bench | diagnose | claims |
figures | settings`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from engine.errors import LLNError
from engine.idle_threads import let_idle_threads_sleep
from engine.types import EmbedOptions, Plan, PositionScheme
from service.errors import PortInUse
from service.logs import set_up_logs
from service.settings import SettingsError, load_settings, setting_rows
from service.version import version_of

if TYPE_CHECKING:
    from engine.engine import AsyncEngine

# Commands import the engine when they run: --help and a misspelt setting should not cost the
# seconds that torch takes to load.

Result = TypeVar("Result")

_FAILED = 1
_MISUSED = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0, 1 if it failed, 2 if it was misused."""
    let_idle_threads_sleep()
    chosen = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], None] = chosen.run
    try:
        run(chosen)
    except SettingsError as error:
        return _complain(error, _MISUSED)
    except (LLNError, PortInUse, OSError) as error:
        return _complain(error, _FAILED)
    except KeyboardInterrupt:
        return 130
    return 0


def _complain(error: Exception, code: int) -> int:
    for line in str(error).splitlines():
        print(f"lln: {line}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lln", description="Embeddings of long documents, and diagnostics of attention."
    )
    parser.add_argument("--version", action="version", version=f"lln {version_of('lln')}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_serve(commands)
    _add_embed(commands)
    _add_models(commands)
    _add_adapt(commands)
    _add_bench(commands)
    _add_diagnose(commands)
    _add_plan(commands)
    _add_claims(commands)
    _add_figures(commands)
    _add_settings(commands)
    return parser


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], None], about: str
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
    command.set_defaults(run=run)
    return command


def _add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON for programs")


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", default="default", help="a name of `lln models`, or a folder")


def _add_serve(commands: Any) -> None:
    command = _command(commands, "serve", _serve, "serve HTTP and gRPC until told to stop")
    command.add_argument("--http-host", help="address HTTP listens on")
    command.add_argument("--http-port", type=int, help="port of HTTP")
    command.add_argument("--grpc-host", help="address gRPC listens on")
    command.add_argument("--grpc-port", type=int, help="port of gRPC")
    command.add_argument("--models", help="models to serve, separated by commas")
    command.epilog = "All else is set in the environment; `lln settings` prints the table."


def _add_embed(commands: Any) -> None:
    command = _command(commands, "embed", _embed, "embed texts, or files, without a server")
    command.add_argument("texts", nargs="*", metavar="TEXT", help="'-' reads standard input")
    command.add_argument("--file", action="append", default=[], type=Path, help="embed a file")
    command.add_argument("--dimensions", type=int, help="keep the first so many numbers")
    command.add_argument("--truncate", choices=("error", "start", "end"), default="error")
    _add_model(command)
    _add_json(command)


def _add_models(commands: Any) -> None:
    _add_json(_command(commands, "models", _models, "list the models that are here"))


def _add_adapt(commands: Any) -> None:
    command = _command(commands, "adapt", _adapt, "make an LLN+Diag model of a softmax checkpoint")
    command.add_argument("model", help="a folder, or a name of `lln models`")
    command.add_argument("--out", type=Path, required=True, help="the new model's folder")
    command.add_argument(
        "--text",
        action="append",
        default=[],
        type=Path,
        help="a file or folder of text like yours (default: Python's own reference manual)",
    )
    command.add_argument("--block-size", type=int, default=256)
    command.add_argument(
        "--positions",
        choices=get_args(PositionScheme),
        default="tile",
        help="learned positions beyond their table: start it anew, stretch it, or start it anew "
        "in each block",
    )
    command.add_argument("--samples", type=int, default=32, help="windows of text to measure on")
    _add_json(command)


def _add_bench(commands: Any) -> None:
    command = _command(commands, "bench", _bench, "measure this machine by length of text")
    command.add_argument("--suite", default="encoder", help="attention, encoder, serving, quality")
    command.add_argument("--lengths", type=_numbers, metavar="N,N,...")
    command.add_argument("--attentions", type=_names, metavar="NAME,NAME,...")
    command.add_argument("--dtypes", type=_names, metavar="NAME,NAME,...")
    command.add_argument("--repeats", type=int)
    command.add_argument("--training", action="store_true", help="time a step of training")
    command.add_argument("--seconds", type=float, help="of the serving suite: for each load")
    command.add_argument("--server", metavar="URL", help="of the serving suite: what it loads")
    command.add_argument("--out", type=Path, help="folder for the rows as JSON, CSV and a picture")
    _add_model(command)
    _add_json(command)


def _add_diagnose(commands: Any) -> None:
    command = _command(commands, "diagnose", _diagnose, "measure the attention of a text")
    command.add_argument("file", help="a text file; '-' reads standard input")
    command.add_argument("--layers", type=_numbers, metavar="N,N,...")
    command.add_argument("--heads", type=_numbers, metavar="N,N,...")
    command.add_argument("--instruments", type=_names, metavar="NAME,NAME,...")
    command.add_argument(
        "--mode",
        default="auto",
        help="auto, exact or sampled, where exactness costs all pairs of tokens (default: auto)",
    )
    _add_model(command)
    _add_json(command)


def _add_plan(commands: Any) -> None:
    command = _command(commands, "plan", _plan, "what texts of some lengths would take here")
    command.add_argument("tokens", type=_numbers, metavar="TOKENS,TOKENS,...")
    _add_model(command)
    _add_json(command)


def _add_claims(commands: Any) -> None:
    command = _command(commands, "claims", _claims, "check what papers claim of attention")
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
    _add_model(command)
    _add_json(command)


def _add_figures(commands: Any) -> None:
    command = _command(commands, "figures", _figures, "draw the LLN paper's figures from this code")
    command.add_argument("--out", type=Path, required=True, help="the folder to write them to")
    command.add_argument("--only", action="append", metavar="NAME", help="a figure; repeatable")
    _add_model(command)
    _add_json(command)


def _add_settings(commands: Any) -> None:
    _add_json(_command(commands, "settings", _settings, "list the environment variables"))


def _numbers(value: str) -> list[int]:
    return [int(number) for number in value.split(",")]


def _names(value: str) -> list[str]:
    return [name.strip() for name in value.split(",")]


def _serve(chosen: argparse.Namespace) -> None:
    names = ("http_host", "http_port", "grpc_host", "grpc_port", "models")
    given = {name: getattr(chosen, name) for name in names if getattr(chosen, name) is not None}
    settings = load_settings(**given)
    set_up_logs(settings)
    from service.server import serve

    serve(settings)


def _with_engine(model: str, work: Callable[[AsyncEngine], Awaitable[Result]]) -> Result:
    config = load_settings().engine
    from engine.engine import AsyncEngine

    async def run() -> Result:
        async with AsyncEngine.load([model], config=config) as engine:
            return await work(engine)

    return asyncio.run(run())


def _read(text: str) -> str:
    return sys.stdin.read() if text == "-" else text


def _print_json(document: Any) -> None:
    print(json.dumps(document, ensure_ascii=False))


def _embed(chosen: argparse.Namespace) -> None:
    texts = [_read(text) for text in chosen.texts]
    texts += [path.read_text(encoding="utf-8") for path in chosen.file]
    options = EmbedOptions(dimensions=chosen.dimensions, truncate=chosen.truncate)
    found = _with_engine(chosen.model, lambda engine: engine.embed(texts, options=options))
    from service.http.vectors import accounting

    for embedding in found:
        vector = embedding.vector.tolist()
        if chosen.json:
            cost = accounting(embedding.accounting)
            _print_json({"model": chosen.model, "embedding": vector, "accounting": cost})
        else:
            head = ", ".join(f"{number:+.4f}" for number in vector[:6])
            print(f"{embedding.accounting.tokens} tokens -> {len(vector)} numbers: {head}, ...")


def _models(chosen: argparse.Namespace) -> None:
    from engine.checkpoint.sources import list_models

    found = list_models()
    if chosen.json:
        _print_json([asdict(model) | {"place": str(model.place)} for model in found])
        return
    names = ("NAME", "ALIASES", "SOURCE", "PLACE")
    _print_table([names, *((m.name, ", ".join(m.aliases), m.source, str(m.place)) for m in found)])


def _adapt(chosen: argparse.Namespace) -> None:
    config = load_settings().engine
    from engine.adapt.calibrate import CalibrationPlan
    from engine.adapt.convert import adapt_model, built_in_texts, read_texts

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else ""
        print(f"\rcalibrating layer {done} of {total}", end=end, file=sys.stderr, flush=True)

    made = adapt_model(
        chosen.model,
        chosen.out,
        read_texts(chosen.text) if chosen.text else built_in_texts(),
        CalibrationPlan(
            block_size=chosen.block_size, num_samples=chosen.samples, positions=chosen.positions
        ),
        config=config,
        progress=show,
    )
    if chosen.json:
        _print_json(asdict(made) | {"folder": str(made.folder)})
        return
    print(
        f"{made.folder}: cosine to the teacher on other text, windows of {made.tokens} tokens: "
        f"mean {made.mean_cosine:.4f}, least {made.least_cosine:.4f}"
    )


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())


def _bench(chosen: argparse.Namespace) -> None:
    from service.benchmarks.shell import bench

    _with_engine(chosen.model, lambda engine: bench(engine, chosen))


def _diagnose(chosen: argparse.Namespace) -> None:
    text = sys.stdin.read() if chosen.file == "-" else Path(chosen.file).read_text("utf-8")
    found = _with_engine(
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

        _print_json(diagnosis_document(found))
        return
    from service.diagnosis_table import diagnosis_lines

    print("\n".join(diagnosis_lines(found)))


def _plan(chosen: argparse.Namespace) -> None:
    async def plans(engine: AsyncEngine) -> list[Plan]:
        return [await engine.plan(tokens) for tokens in chosen.tokens]

    found = _with_engine(chosen.model, plans)
    if chosen.json:
        _print_json([asdict(plan) for plan in found])
        return
    print(f"{'tokens':>10} {'path':>7} {'megabytes':>10} {'seconds':>8} {'fits':>5}")
    for plan in found:
        fits = "yes" if plan.fits else "no"
        megabytes = plan.bytes / 1e6
        print(f"{plan.tokens:>10} {plan.path:>7} {megabytes:>10.1f} {plan.seconds:>8.2f} {fits:>5}")


def _claims(chosen: argparse.Namespace) -> None:
    from engine.claims import ClaimRow, claims_page, find_claims
    from engine.claims.heads import document_start

    find_claims(chosen.only)  # a misspelt name should not cost the loading of a model
    text = chosen.text.read_text(encoding="utf-8") if chosen.text else document_start()

    def show(row: ClaimRow) -> None:
        if not (chosen.json or chosen.markdown):
            said = "".join(f"\n    {text}" for text in (row.corrected, row.remark) if text)
            print(f"{row.verdict:<16}{row.id}: {row.statement}{said}", flush=True)

    rows = _with_engine(
        chosen.model,
        lambda engine: engine.claims(
            only=chosen.only, text=text, thorough=chosen.thorough, progress=show
        ),
    )
    if chosen.json:
        _print_json([asdict(row) for row in rows])
    elif chosen.markdown:
        print(claims_page(rows), end="")


def _figures(chosen: argparse.Namespace) -> None:
    from engine.claims.heads import document_start
    from engine.figures import draw_figures, find_figures

    find_figures(chosen.only)
    heads = _with_engine(chosen.model, lambda engine: engine.head_samples(document_start()))
    for path in draw_figures(chosen.out, heads, only=chosen.only):
        print(json.dumps(str(path)) if chosen.json else path, flush=True)


def _settings(chosen: argparse.Namespace) -> None:
    rows = list(setting_rows())
    if chosen.json:
        _print_json([row._asdict() for row in rows])
        return
    _print_table([("VARIABLE", "DEFAULT", "MEANING"), *rows])


if __name__ == "__main__":
    sys.exit(main())
