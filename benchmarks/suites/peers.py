"""Our server and infinity side by side: the same weights, machine, threads, requests and client.

Both run at once and are loaded in turns, so other load on the machine slows both. infinity cuts a
text at 256 tokens: of a document of 8,192 it reads a thirty-second, and its time is multiplied by
32. In a second comparison it gets the same weights with their table of positions repeated. It then
reads the whole document at once, as ours does, and its softmax sees every pair of tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.rivals.infinity_rival import MODEL, TRUNCATES_AT, infinity_server, is_installed
from benchmarks.rivals.long_checkpoint import write_long_checkpoint
from benchmarks.rows import Plan, Row, Target
from benchmarks.servers import Served, our_server
from benchmarks.workbench import PUBLISHED_MODEL, Workbench
from service.benchmarks.load import PROFILES, Traffic, saturate

_DOCUMENT = 8192
_SECONDS, _QUICK_SECONDS = 10.0, 3.0
_CLIENTS = 32


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    if not is_installed():
        print(
            "infinity is not installed; benchmarks/rivals/infinity_rival.py says how to install it"
        )
        return
    folder = bench.softmax.model.checkpoint.folder
    seconds = _QUICK_SECONDS if plan.quick else _SECONDS
    turns = plan.turns(5)
    with (
        our_server(bench.threads, LLN_MODELS=f"default,{PUBLISHED_MODEL}") as ours,
        infinity_server(folder, bench.threads) as theirs,
    ):
        short = PROFILES["short"]
        yield _compared(
            "short texts, each a request",
            [(ours, short), (theirs, replace(short, model=MODEL))],
            clients=_CLIENTS,
            seconds=seconds,
            turns=turns,
            read=(1.0, 1.0),
            target=Target(">=", 1.2),
        )
        long = Traffic(name="document", weights={_DOCUMENT: 1})
        yield _compared(
            f"documents of {_DOCUMENT} tokens, a vector of the whole; infinity reads "
            f"{TRUNCATES_AT} and is charged for the rest",
            [(ours, long), (theirs, replace(long, model=MODEL))],
            clients=1,
            seconds=seconds,
            turns=turns,
            read=(1.0, TRUNCATES_AT / _DOCUMENT),
            target=None,
        )
    with (
        our_server(bench.threads) as ours,
        _whole_document_server(folder, bench.threads) as theirs,
    ):
        yield _compared(
            f"documents of {_DOCUMENT} tokens, a vector of the whole; infinity reads all of it "
            "with a repeated table",
            [(ours, long), (theirs, replace(long, model=MODEL))],
            clients=1,
            seconds=2 * seconds,
            turns=plan.turns(3),
            read=(1.0, 1.0),
            target=Target(">=", 5),
        )


@contextmanager
def _whole_document_server(folder: Path, threads: int) -> Iterator[Served]:
    with TemporaryDirectory() as place:
        long_folder = Path(place) / "long"
        write_long_checkpoint(folder, long_folder, _DOCUMENT)
        with infinity_server(long_folder, threads) as served:
            yield served


def _compared(
    case: str,
    sides: list[tuple[Served, Traffic]],
    *,
    clients: int,
    seconds: float,
    turns: int,
    read: tuple[float, float],
    target: Target | None,
) -> Row:
    """Requests a second of ours over theirs, each counted by the share of the text it read."""
    taken: list[tuple[float, ...]] = []
    for turn in range(turns + 1):
        rates = tuple(
            share
            * asyncio.run(
                saturate(served.target, traffic, clients=clients, seconds=seconds, seed=turn)
            ).answered_per_s
            for (served, traffic), share in zip(sides, read, strict=True)
        )
        if turn:  # the first one warms both up
            taken.append(rates)
    by_turn = [ours / theirs for ours, theirs in taken]
    return Row(
        case=case,
        measure="requests/s of ours / infinity",
        value=median(by_turn),
        target=target,
        seconds={
            "LLN, a request": tuple(1 / ours for ours, _ in taken),
            "infinity, a request": tuple(1 / theirs for _, theirs in taken),
        },
        spread=(min(by_turn), max(by_turn)),
    )
