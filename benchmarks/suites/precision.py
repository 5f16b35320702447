"""What bfloat16 and int8 gain and change on this CPU, and that batching changes no bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from benchmarks.rows import Plan, Row, Target, Turns, least_row, ratio_row, take_turns
from benchmarks.workbench import LLN_DIAG, Workbench
from engine.engine import Engine
from engine.platform.device import possible_precisions
from engine.types import Vector

FLOAT32 = f"{LLN_DIAG} float32"
NARROW = ("bfloat16", "int8")
BATCH_TEXTS, SHORTEST, LONGEST = 128, 3, 1024
UNMOVED = Target("<=", 0.0)


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    counts = np.linspace(SHORTEST, LONGEST, BATCH_TEXTS).round().astype(int)
    texts = bench.text.passages(counts.tolist())
    case = f"{len(texts)} texts of {SHORTEST} to {LONGEST} tokens"
    wide = bench.lln_diag
    found = wide.embed(texts)
    yield _alone_or_not(wide, FLOAT32, case, texts, found)
    for dtype in NARROW:
        if dtype in possible_precisions():
            with bench.lln_diag_in(dtype) as engine:
                yield from _narrow(bench, plan, engine, case, texts, found)


def _narrow(
    bench: Workbench, plan: Plan, engine: Engine, case: str, texts: Sequence[str], found: Vector
) -> Iterator[Row]:
    wide, name = bench.lln_diag, f"{LLN_DIAG} {engine.info.dtype}"
    rounded = engine.embed(texts)
    yield _alone_or_not(engine, name, case, texts, rounded)
    yield _nearness(case, name, found, rounded)
    document = [bench.text.document(8_192)]
    yield _nearness("8,192 tokens", name, wide.embed(document), engine.embed(document))
    timed = (
        ("1 x 16 tokens", bench.text.passages([16]), Turns(repeats=plan.turns(7), calls=20)),
        ("1 x 128 tokens", bench.text.passages([128]), Turns(repeats=plan.turns(7), calls=10)),
        ("32 x 128 tokens", bench.text.passages([128] * 32), Turns(repeats=plan.turns(7))),
        ("8,192 tokens", document, Turns(repeats=plan.turns(7))),
    )
    for case, some, turns in timed:
        runs = {FLOAT32: partial(wide.embed, some), name: partial(engine.embed, some)}
        taken = take_turns(runs, turns)
        yield ratio_row(taken, FLOAT32, name, case=case, measure=f"{FLOAT32} / {name}")


def _alone_or_not(
    engine: Engine, name: str, case: str, texts: Sequence[str], together: Vector
) -> Row:
    """How far a text's vector changes when others are embedded with it: by no bit."""
    alone = np.concatenate([engine.embed([text]) for text in texts])
    return Row(
        case=case,
        measure=f"{name}: largest difference, alone and in one call",
        value=float(np.abs(together - alone).max()),
        target=UNMOVED,
        seconds={},
    )


def _nearness(case: str, name: str, wide: Vector, narrow: Vector) -> Row:
    cosines = (wide.astype(np.float64) * narrow).sum(1).tolist()
    return least_row(cosines, case=case, measure=f"least cosine, {FLOAT32} and {name}")
