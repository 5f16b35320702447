"""`lln diagnose`, `lln claims` and `lln figures`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from engine.attention_types import SAMPLED_ROWS, Diagnosis, ExtraReading, HeadValues
from engine.errors import InvalidInput, shown
from service.cli.common import (
    Chosen,
    Commands,
    add_command,
    add_json,
    add_model,
    names,
    numbers,
    path_of,
    print_json,
    read_text,
    shares,
    with_engine,
)

if TYPE_CHECKING:
    from engine.claims.claim import ClaimRow

_COLUMN = 11
"""Characters of a column of a diagnosis."""


def add_diagnose(commands: Commands) -> None:
    command = add_command(commands, "diagnose", _diagnose, "measure the attention of a text")
    command.add_argument("file", metavar="FILE", help="a text file; '-' reads standard input")
    command.add_argument("--layers", type=numbers, metavar="N,N,...", help="default: all")
    command.add_argument("--heads", type=numbers, metavar="N,N,...", help="default: all")
    command.add_argument(
        "--instruments",
        type=names,
        metavar="NAME,NAME,...",
        help="default: all; a server lists them at GET /v1/diagnostics/instruments",
    )
    command.add_argument(
        "--mode",
        default="auto",
        help="auto, exact or sampled, for quantities that need all pairs of tokens (default: auto)",
    )
    command.add_argument(
        "--rows",
        type=int,
        default=SAMPLED_ROWS,
        metavar="N",
        help="rows of each head to read if rows are sampled (default: %(default)s)",
    )
    command.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of the sampled rows (default: 0)"
    )
    command.add_argument(
        "--quantiles",
        type=shares,
        default=(),
        metavar="Q,Q,...",
        help="also print these quantiles over the rows, such as 0.1,0.5,0.9",
    )
    add_model(command)
    add_json(command)


def _text_of(file: str) -> str:
    try:
        return read_text(file)
    except FileNotFoundError:
        if " " not in file:
            raise
        raise InvalidInput(
            f"there is no file {shown(file)!r}; to diagnose a text, give '-' and send the text to "
            "standard input",
            code="no_files",
            param="file",
        ) from None


def _diagnose(chosen: Chosen) -> None:
    text = _text_of(chosen.file)
    found = with_engine(
        chosen.model,
        lambda engine: engine.diagnose(
            text,
            layers=chosen.layers,
            heads=chosen.heads,
            instruments=chosen.instruments,
            mode=chosen.mode,
            sampled_rows=chosen.rows,
            seed=chosen.seed,
            quantiles=chosen.quantiles,
        ),
    )
    if chosen.json:
        from service.http.routes.attention import diagnosis_document

        print_json(diagnosis_document(found))
    else:
        print("\n".join(_diagnosis_lines(found)))


def _diagnosis_lines(found: Diagnosis) -> Iterator[str]:
    yield f"{found.tokens} tokens, model {found.model}, mode {found.mode}"
    if found.rows_read < found.tokens:
        yield f"{found.rows_read} rows a head wherever rows are sampled, seed {found.seed}"
    yield from found.notes
    for reading in found.instruments:
        yield ""
        yield from _instrument_lines(found, reading)
    for skipped in found.left_out:
        yield ""
        yield f"{skipped.instrument}: left out; {skipped.reason}"


def _instrument_lines(found: Diagnosis, reading: HeadValues) -> Iterator[str]:
    yield f"{reading.instrument} ({reading.unit}; {reading.method}; {reading.compute_s:.2f} s)"
    columns = ["all heads"] if reading.scope == "layer" else [f"head {n}" for n in found.heads]
    yield "layer  " + "".join(f"{name:>{_COLUMN}}" for name in columns)
    unasked = (None,) * len(found.layers)
    by_layer = zip(
        found.layers,
        reading.values,
        reading.error or unasked,
        reading.labels or unasked,
        strict=True,
    )
    extras = {extra.name: extra for extra in reading.beside}
    spread = extras.pop("quantiles", None) if found.quantiles else None
    for index, (layer, values, error, labels) in enumerate(by_layer):
        yield f"{layer:>5}  " + _cells(values)
        if labels is not None:
            yield " " * 7 + "".join(f"{label:>{_COLUMN}}" for label in labels)
        if error is not None and any(error):
            yield "  +/-  " + _cells(error)
        if spread is not None:
            yield from _quantile_lines(found.quantiles, spread, index)
    for extra in extras.values():
        yield from _extra_lines(extra)


def _quantile_lines(asked: Sequence[float], spread: ExtraReading, layer: int) -> Iterator[str]:
    """A line for each share of the rows, with its error where rows were sampled."""
    for at, share in enumerate(asked):
        for name, by_layer in ((f"{share:>5.3g}", spread.values), ("  +/-", spread.error)):
            if by_layer is not None and by_layer[layer] is not None:
                yield f"{name}  " + _cells(np.asarray(by_layer[layer])[:, at].tolist())


def _extra_lines(extra: ExtraReading) -> Iterator[str]:
    """Layer means if each head has one number; otherwise the shape."""
    known = [np.asarray(values) for values in extra.values if values is not None]
    if not known:
        return
    if all(values.ndim <= 1 for values in known):
        means = " ".join(f"{float(values.mean()):.4g}" for values in known)
        yield f"       {extra.name} ({extra.unit}), mean by layer: {means}"
    else:
        shapes = ", ".join(dict.fromkeys(" x ".join(map(str, values.shape)) for values in known))
        yield f"       {extra.name} ({extra.unit}): {shapes} per layer, in --json"


def _cells(values: Sequence[float]) -> str:
    return "".join(f"{value:>{_COLUMN}.4g}" for value in values)


def add_claims(commands: Commands) -> None:
    command = add_command(commands, "claims", _claims, "check what papers claim about attention")
    command.add_argument(
        "--only",
        action="append",
        metavar="ID",
        help="a claim's id, or the common beginning of a paper's ids; repeatable",
    )
    command.add_argument(
        "--text", type=path_of, help="a document to measure heads on (default: Python's manual)"
    )
    command.add_argument("--thorough", action="store_true", help="more trials, and every head")
    command.add_argument("--markdown", action="store_true", help="print the page docs/claims.md")
    add_model(command)
    add_json(command)


def _claims(chosen: Chosen) -> None:
    from engine.claims.check import check_claims, document_start, find_claims
    from engine.claims.page import claims_page

    find_claims(chosen.only)  # fails on a misspelt name before a model loads
    text = read_text(chosen.text) if chosen.text else document_start()

    def show(row: ClaimRow) -> None:
        if not (chosen.json or chosen.markdown):
            source = f"{row.place}: {row.printed}" if row.printed else None
            told = (
                row.corrected,
                row.remark,
                source,
                f"read: {row.reading}",
                f"flips: {row.flips}",
            )
            notes = "".join(f"\n    {note}" for note in told if note)
            print(f"{row.verdict:<16}{row.id}: {row.statement}{notes}", flush=True)

    rows = with_engine(
        chosen.model,
        lambda engine: check_claims(
            engine, only=chosen.only, text=text, thorough=chosen.thorough, progress=show
        ),
    )
    if chosen.json:
        print_json([asdict(row) for row in rows])
    elif chosen.markdown:
        print(claims_page(rows), end="")


def add_figures(commands: Commands) -> None:
    about = "draw the LLN paper's figures from this code"
    command = add_command(commands, "figures", _figures, about)
    command.add_argument("--out", type=path_of, required=True, help="the folder for the figures")
    command.add_argument("--only", action="append", metavar="NAME", help="a figure; repeatable")
    add_model(command)
    add_json(command)


def _figures(chosen: Chosen) -> None:
    from engine.claims.check import document_start, sample_heads
    from engine.claims.figures.draw import draw_figures, find_figures

    find_figures(chosen.only)
    heads = with_engine(chosen.model, lambda engine: sample_heads(engine, document_start()))
    for path in draw_figures(chosen.out, heads, only=chosen.only):
        print(json.dumps(str(path)) if chosen.json else path, flush=True)
