"""int8 beside float32 and the int8 of others: speed, and how far vectors move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from benchmarks.rows import Plan, Row, Target, Turns, ratio_row, take_turns
from benchmarks.workbench import LLN_DIAG, Embed, Workbench
from engine.platform.device import cpu_multiplies_int8

FLOAT32, INT8 = f"{LLN_DIAG} float32", f"{LLN_DIAG} int8"
RIVALS = ("ONNX Runtime int8", "OpenVINO int8")
OVER_FLOAT32 = Target(">=", 2.2)
QUALITY = Target(">=", 0.999)


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    if not cpu_multiplies_int8():
        return
    contenders: Mapping[str, Embed] = {
        FLOAT32: bench.lln_diag.embed,
        INT8: bench.lln_diag_in("int8").embed,
        **dict(zip(RIVALS, bench.int8_rivals, strict=True)),
    }
    batch = bench.text.passages([128] * 32)
    yield from _qualities(contenders, "32 x 128 tokens", batch)
    short = ("32 x 128 tokens", batch, Turns(repeats=plan.turns(7)), Target(">=", 1.2))
    query = bench.text.passages([16])
    turns = Turns(repeats=plan.turns(7), calls=20)
    ragged = bench.text.paragraphs(64 if plan.quick else 512, shortest=5, longest=500)
    for case, texts, taken_in, target in (
        short,
        ("1 x 16 tokens", query, turns, Target(">=", 1.0)),
        (f"{len(ragged)} paragraphs", ragged, Turns(repeats=plan.turns(3)), Target(">=", 1.5)),
    ):
        yield from _compare(contenders, case, texts, taken_in, target)
    document = [bench.text.document(8_192)]
    ours = {name: contenders[name] for name in (FLOAT32, INT8)}
    yield from _compare(ours, "8,192 tokens", document, Turns(repeats=plan.turns(5)), None)
    yield from _qualities(ours, "8,192 tokens", document)


def _compare(
    contenders: Mapping[str, Embed],
    case: str,
    texts: Sequence[str],
    turns: Turns,
    target: Target | None,
) -> Iterator[Row]:
    runs = {name: partial(embed, texts) for name, embed in contenders.items()}
    taken = take_turns(runs, turns)
    for name in contenders:
        if name != INT8:
            wanted = OVER_FLOAT32 if name == FLOAT32 else target
            measure = f"{name} / {INT8}"
            yield ratio_row(taken, name, INT8, case=case, measure=measure, target=wanted)


def _qualities(contenders: Mapping[str, Embed], case: str, texts: Sequence[str]) -> Iterator[Row]:
    """The mean cosine of each to our float32."""
    expected = contenders[FLOAT32](texts).astype(np.float64)
    for name, embed in contenders.items():
        if name != FLOAT32:
            cosines = (expected * embed(texts)).sum(1)
            yield Row(
                case=case,
                measure=f"mean cosine, {FLOAT32} and {name}",
                value=float(cosines.mean()),
                target=QUALITY if name == INT8 else None,
                seconds={},
                spread=(float(cosines.min()), float(cosines.max())),
            )
