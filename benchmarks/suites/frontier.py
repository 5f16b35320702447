"""What the block size gains and costs: the served calibration with blocks of other sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from benchmarks.retrieval import WINDOW, cosine_rows, held_out_corpora, retrieval_rows
from benchmarks.rows import Plan, Row, Turns, ratio_row, take_turns
from benchmarks.workbench import Workbench
from engine.model.embedding_model import EmbeddingModel

BLOCKS, QUICK_BLOCKS = (64, 128, 256, 512), (64, 256)
TOKENS = 8_192
LENGTH, TEXTS = 512, 200
WINDOWS = "softmax over windows"


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    served, teacher = bench.lln_diag.model, bench.softmax.model
    assert served.calibration is not None, "an LLN+Diag model has a calibration"
    students = {
        f"blocks of {size}": served.with_calibration(
            replace(served.calibration, block_size=size, long_block=None)
        )
        for size in (QUICK_BLOCKS if plan.quick else BLOCKS)
    }
    yield from _costs(bench, students, plan)
    corpora = held_out_corpora(plan)
    yield from cosine_rows(teacher, students, corpora, length=LENGTH, texts=TEXTS)
    yield from retrieval_rows(teacher, students, corpora)


def _costs(bench: Workbench, students: Mapping[str, EmbeddingModel], plan: Plan) -> Iterator[Row]:
    (document,) = bench.softmax.model.tokenizer.encode_batch([bench.text.document(TOKENS)])
    ids = torch.from_numpy(document.ids.astype(np.int64))
    windows = list(range(0, TOKENS + 1, WINDOW))
    encoders = {name: (student.encoder, [0, TOKENS]) for name, student in students.items()}
    encoders[WINDOWS] = (bench.softmax.model.encoder, windows)
    with torch.inference_mode():
        taken = take_turns(
            {name: partial(run, ids, bounds) for name, (run, bounds) in encoders.items()},
            Turns(repeats=plan.turns(7)),
        )
    for name in students:
        measure = f"{TOKENS:,} tokens, time / {WINDOWS}"
        yield ratio_row(taken, name, WINDOWS, case=name, measure=measure)
