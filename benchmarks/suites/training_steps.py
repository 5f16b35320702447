"""A training step of a small encoder: memory and time against length (LLN paper, table 2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Generator
from torch.nn import functional as F

from benchmarks.rows import Plan, Row, Run, Seconds, Target, Turns, take_turns
from benchmarks.workbench import Workbench
from engine.experiments.attention import find_attention
from engine.experiments.encoder import EncoderShape, SmallEncoder
from engine.platform.memory import watch_peak

LENGTHS = (512, 1_024, 2_048, 4_096, 8_192)
QUICK_LENGTHS = (128, 256)
KINDS = ("softmax", "nystromformer", "performer", "lln", "lln_diag", "block_diagonal")
LINEAR = ("lln", "lln_diag")
GROWTH = Target("<=", 1.05)
_VOCABULARY = 256


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    lengths = QUICK_LENGTHS if plan.quick else LENGTHS
    peaks: dict[str, list[int]] = {kind: [] for kind in KINDS}
    taken: dict[int, Mapping[str, Seconds]] = {}
    for length in lengths:
        steps = {kind: _step(kind, length) for kind in KINDS}
        for kind, step in steps.items():
            peaks[kind].append(_peak_bytes(step))
            yield Row(
                case=f"{kind}, {length:,} tokens",
                measure="peak of a step, MB",
                value=peaks[kind][-1] / 1e6,
                seconds={},
            )
        taken[length] = take_turns(steps, Turns(repeats=plan.turns(3)))
        yield from _time_rows(taken[length], length)
    for kind, found in peaks.items():
        yield Row(
            case=f"{kind}, {lengths[-1]:,} tokens against {lengths[0]:,}",
            measure="bytes a token, ratio",
            value=found[-1] / found[0] * lengths[0] / lengths[-1],
            target=GROWTH if kind in LINEAR else None,
            seconds={},
        )


def _time_rows(taken: Mapping[str, Seconds], length: int) -> Iterator[Row]:
    for kind in KINDS:
        ratios = [a / b for a, b in zip(taken[kind], taken["softmax"], strict=True)]
        yield Row(
            case=f"{kind}, {length:,} tokens",
            measure="time of a step / softmax's",
            value=sorted(ratios)[len(ratios) // 2],
            seconds={kind: taken[kind], "softmax": taken["softmax"]},
            spread=(min(ratios), max(ratios)),
        )


def _step(kind: str, length: int) -> Run:
    """Forward and backward of one sequence."""
    shape = EncoderShape(
        layers=2, width=128, heads=4, length=length, vocabulary=_VOCABULARY, classes=_VOCABULARY
    )
    torch.manual_seed(0)
    model = SmallEncoder(shape, find_attention(kind, block_size=64))
    tokens = torch.randint(_VOCABULARY, (1, length), generator=Generator().manual_seed(0))

    def run() -> None:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]

    return run


def _peak_bytes(step: Run) -> int:
    with watch_peak(torch.device("cpu")) as found:
        step()
    return found.peak
