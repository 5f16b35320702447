"""What bfloat16 products gain and change on this CPU, and that batching changes no bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from benchmarks.rows import Plan, Row, Target, Turns, least_row, ratio_row, take_turns
from benchmarks.workbench import LLN_DIAG, Workbench
from engine.engine import Engine
from engine.platform.device import cpu_multiplies_bfloat16
from engine.types import Vector

FLOAT32, BFLOAT16 = f"{LLN_DIAG} float32", f"{LLN_DIAG} bfloat16"
BATCH_TEXTS, SHORTEST, LONGEST = 128, 3, 1024
UNMOVED = Target("<=", 0.0)


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    counts = np.linspace(SHORTEST, LONGEST, BATCH_TEXTS).round().astype(int)
    texts = bench.text.passages(counts.tolist())
    case = f"{len(texts)} texts of {SHORTEST} to {LONGEST} tokens"
    wide = bench.lln_diag
    found = wide.embed(texts)
    yield _alone_or_not(wide, FLOAT32, case, texts, found)
    if not cpu_multiplies_bfloat16():
        return
    narrow = bench.lln_diag_in("bfloat16")
    rounded = narrow.embed(texts)
    yield _alone_or_not(narrow, BFLOAT16, case, texts, rounded)
    yield _nearness(case, found, rounded)
    document = [bench.text.document(8_192)]
    yield _nearness("8,192 tokens", wide.embed(document), narrow.embed(document))
    timed = (
        ("1 x 16 tokens", bench.text.passages([16]), Turns(repeats=plan.turns(7), calls=20)),
        ("32 x 128 tokens", bench.text.passages([128] * 32), Turns(repeats=plan.turns(7))),
        ("8,192 tokens", document, Turns(repeats=plan.turns(7))),
    )
    for case, some, turns in timed:
        runs = {
            FLOAT32: partial(wide.embed, some),
            BFLOAT16: partial(narrow.embed, some),
        }
        taken = take_turns(runs, turns)
        yield ratio_row(taken, FLOAT32, BFLOAT16, case=case, measure=f"{FLOAT32} / {BFLOAT16}")


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


def _nearness(case: str, wide: Vector, narrow: Vector) -> Row:
    cosines = (wide.astype(np.float64) * narrow).sum(1).tolist()
    return least_row(cosines, case=case, measure=f"least cosine, {FLOAT32} and {BFLOAT16}")
