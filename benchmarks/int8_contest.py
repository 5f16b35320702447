"""Our int8 beside our float32 and the int8 of others: seconds, and how near vectors stay.

All contenders get the same texts. The name of ours is given, because a CPU without VNNI computes
another int8 than one that has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.rows import Plan, Row, Target, Turns, ratio_row, take_turns
from benchmarks.workbench import LLN_DIAG, Embed, Workbench
from engine.types import Vector

FLOAT32 = f"{LLN_DIAG} float32"
RIVALS = ("ONNX Runtime int8", "OpenVINO int8")
OVER_FLOAT32 = Target(">=", 2.2)
NEAR = Target(">=", 0.999)


@dataclass(frozen=True)
class Int8Contest:
    ours: str
    contenders: Mapping[str, Embed]
    measure: str = "{} / {}"
    """How a ratio of seconds is named."""
    near: Target = NEAR
    """The mean cosine of ours to our float32."""

    def short_texts(self, bench: Workbench, plan: Plan, turns: Turns) -> Iterator[Row]:
        """A batch of like length, one query, one passage and a batch of mixed length."""
        batch = bench.text.passages([128] * 32)
        yield from self.nearness("32 x 128 tokens", batch)
        query, passage = bench.text.passages([16]), bench.text.passages([128])
        ragged = bench.text.paragraphs(64 if plan.quick else 512, shortest=5, longest=500)
        few = turns.taken(plan.turns(3))
        for case, texts, taken_in, target in (
            ("32 x 128 tokens", batch, turns, Target(">=", 1.2)),
            ("1 x 16 tokens", query, turns.taken(turns.repeats, calls=20), Target(">=", 1.0)),
            ("1 x 128 tokens", passage, turns.taken(turns.repeats, calls=10), None),
            (f"{len(ragged)} paragraphs", ragged, few, Target(">=", 1.5)),
        ):
            yield from self.speeds(case, texts, taken_in, target)

    def document(self, bench: Workbench, turns: Turns) -> Iterator[Row]:
        """A document of 8,192 tokens, against float32 alone: others read at most 512."""
        ours_alone = self.between(FLOAT32, self.ours)
        document = [bench.text.document(8_192)]
        yield from ours_alone.speeds("8,192 tokens", document, turns, None)
        yield from ours_alone.nearness("8,192 tokens", document)

    def longest(self, bench: Workbench, turns: Turns) -> Iterator[Row]:
        """A document of 262,144 tokens, which takes up to a minute, so none is read to warm up."""
        ours_alone = self.between(FLOAT32, self.ours)
        document = [bench.text.speeches(262_144)]
        yield from ours_alone.speeds("262,144 tokens", document, replace(turns, warm=False), None)

    def between(self, *names: str) -> Int8Contest:
        chosen = {name: self.contenders[name] for name in names}
        return replace(self, contenders=chosen)

    def speeds(
        self, case: str, texts: Sequence[str], turns: Turns, target: Target | None
    ) -> Iterator[Row]:
        runs = {name: partial(embed, texts) for name, embed in self.contenders.items()}
        taken = take_turns(runs, turns)
        for name in self.contenders:
            if name != self.ours:
                wanted = OVER_FLOAT32 if name == FLOAT32 else target
                measure = self.measure.format(name, self.ours)
                yield ratio_row(taken, name, self.ours, case=case, measure=measure, target=wanted)

    def nearness(self, case: str, texts: Sequence[str]) -> Iterator[Row]:
        """The mean cosine of each to our float32."""
        expected = self.contenders[FLOAT32](texts)
        for name, embed in self.contenders.items():
            if name != FLOAT32:
                target = self.near if name == self.ours else None
                yield nearness_row(case, name, expected, embed(texts), target)


def nearness_row(
    case: str, name: str, expected: Vector, found: Vector, target: Target | None
) -> Row:
    cosines = (expected.astype(np.float64) * found).sum(1)
    return Row(
        case=case,
        measure=f"mean cosine, {FLOAT32} and {name}",
        value=float(cosines.mean()),
        target=target,
        seconds={},
        spread=(float(cosines.min()), float(cosines.max())),
    )
