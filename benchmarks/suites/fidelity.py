"""How close LLN+Diag's vectors are to the published model's, and what LLN contributes.

Up to its position table the teacher reads the same text. Beyond it, the teacher reads windows, and
their mean is compared with the vector of the whole. The control has the same blocks and sinks, and
no LLN.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.rows import Plan, Row
from benchmarks.texts import speech, speech_names
from benchmarks.workbench import LLN_DIAG, Workbench
from engine.engine import Engine
from engine.types import EmbedOptions

CONTROL = "Diag alone"
LENGTHS, QUICK_LENGTHS = (256, 384, 512, 2048, 7000), (256, 512)
NUM_TEXTS, NUM_LONG_TEXTS, NUM_QUICK_TEXTS = 40, 12, 8
_RAW = EmbedOptions(normalize=False)


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    teacher = bench.softmax
    table = teacher.info.position_table
    control = Engine(
        bench.lln_diag.model.with_attention("block_diagonal"), config=bench.lln_diag.config
    )
    speeches = _speeches(teacher)
    for length in QUICK_LENGTHS if plan.quick else LENGTHS:
        number = NUM_QUICK_TEXTS if plan.quick else _number(length, table)
        windows = _windows(speeches, length - teacher.model.tokenizer.num_special, number)
        wanted = np.stack([_teacher_vector(teacher, ids, table) for ids in windows])
        for name, student in ((LLN_DIAG, bench.lln_diag), (CONTROL, control)):
            found = student.embed([ids.tolist() for ids in windows])
            yield _row(f"{number} texts of {length} tokens", name, (found * wanted).sum(1))


def _row(case: str, name: str, cosines: NDArray[np.float64]) -> Row:
    return Row(
        case=case,
        measure=f"mean cosine to the teacher, {name}",
        value=float(cosines.mean()),
        seconds={},
        spread=(float(cosines.min()), float(cosines.max())),
    )


def _number(length: int, table: int) -> int:
    return NUM_TEXTS if length <= table else NUM_LONG_TEXTS


def _speeches(teacher: Engine) -> list[NDArray[np.int32]]:
    """Content tokens of State of the Union addresses, on which nothing was calibrated."""
    texts = [speech(name) for name in speech_names()[::12]]
    encoded = teacher.model.tokenizer.encode_batch(texts)
    return [item.content for item in encoded]


def _windows(
    speeches: Sequence[NDArray[np.int32]], size: int, number: int
) -> list[NDArray[np.int32]]:
    """`number` windows, spread evenly over all."""
    found = [
        speech[start : start + size]
        for speech in speeches
        for start in range(0, len(speech) - size + 1, size)
    ]
    assert len(found) >= number, f"only {len(found)} windows of {size} tokens"
    return [found[index] for index in np.linspace(0, len(found) - 1, number).astype(int)]


def _teacher_vector(teacher: Engine, ids: NDArray[np.int32], table: int) -> NDArray[np.float64]:
    """The mean over windows, weighted by their tokens; one window is the text itself.

    It averages vectors before normalising; benchmarks.retrieval averages unit vectors.
    """
    size = table - teacher.model.tokenizer.num_special
    windows = [ids[start : start + size] for start in range(0, len(ids), size)]
    vectors = teacher.embed([window.tolist() for window in windows], options=_RAW)
    mean = np.average(vectors, axis=0, weights=[len(window) for window in windows])
    unit: NDArray[np.float64] = mean / np.linalg.norm(mean)
    return unit
