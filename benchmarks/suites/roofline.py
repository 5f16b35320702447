"""The rate at which this CPU multiplies in each precision, and the engine's share of it.

The peak is that of one large product by the library that the engine uses. The engine's work counts
the products of the linear layers and of softmax; all else that it does takes time and counts
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from time import perf_counter

import torch

from benchmarks.rows import Plan, Row, Run, Target
from benchmarks.workbench import LLN_DIAG, Workbench
from engine.engine import Engine
from engine.model.int8 import byte_product, quantised, quantised_rows
from engine.model.linear import linear, pack
from engine.model.weights import Affine
from engine.platform.device import REDUCED, possible_precisions, torch_dtype

SHARE = Target(">=", 0.7)
_ROWS, _WIDTH = 4_096, 1_536
_BYTES = 2**28


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    torch.set_num_threads(bench.threads)
    source = torch.zeros(_BYTES // 4)
    copied = _seconds(lambda: source.clone().copy_(source), plan)
    traffic = [4 * _BYTES / one / 1e9 for one in copied]
    yield _row("memory", "copied, GB/s read and written", traffic, copied)
    documents = {
        "32 x 128 tokens": bench.text.passages([128] * 32),
        "8,192 tokens": [bench.text.document(8_192)],
        "1 x 16 tokens": bench.text.passages([16]),
    }
    for precision in possible_precisions():
        with bench.lln_diag_in(precision) as engine:
            for case, texts in documents.items():
                yield from _share(precision, case, texts, engine, plan)


def _share(
    precision: str, case: str, texts: Sequence[str], engine: Engine, plan: Plan
) -> Iterator[Row]:
    """Peak and engine in turns, so that other load slows both."""
    product, work = _large_product(precision), _work(engine, texts)
    peaks, shares, taken = [], [], []
    for _ in range(plan.turns(5) + 1):
        [peak_s] = _seconds(product, plan, turns=1)
        [engine_s] = _seconds(partial(engine.embed, texts), plan, turns=1)
        peaks.append(_ROWS * _WIDTH**2 / peak_s / 1e9)
        shares.append(work / engine_s / 1e9 / peaks[-1])
        taken.append(engine_s)
    name = f"{LLN_DIAG} {precision}"
    yield _row(precision, "peak, 1e9 multiplications/s", peaks[1:], [])
    yield _row(case, f"{name}: share of the peak", shares[1:], taken[1:], SHARE)


def _large_product(precision: str) -> Run:
    x, layer = torch.randn(_ROWS, _WIDTH), Affine(torch.randn(_WIDTH, _WIDTH), None)
    dtype = torch_dtype(precision)
    if dtype is torch.int8:
        rows, weight = quantised_rows(x).rows, quantised(*layer, reduced=precision == REDUCED)
        return lambda: byte_product(rows, weight)
    packed, rows = pack(Affine(layer.weight.to(dtype), None), dtype), x.to(dtype)
    return torch.inference_mode()(lambda: linear(rows, packed))


def _work(engine: Engine, texts: Sequence[str]) -> int:
    """Multiplications of the linear layers, and of softmax within blocks."""
    weights, model = engine.model.encoder.weights, engine.model
    layer = weights.layers[0]
    parts = (layer.qkv, layer.attention_out, layer.ffn_in, layer.ffn_out)
    a_token = sum(part.num_weights for part in parts)
    calibration = model.calibration
    assert calibration is not None, "the default model has one"
    work = 0
    for text in model.tokenizer.encode_batch(texts):
        long = calibration.long_block
        block = calibration.block_size
        if long is not None and text.num_tokens > long.beyond:
            block = long.size
        work += text.num_tokens * (a_token + 2 * weights.width * min(block, text.num_tokens))
    return work * len(weights.layers)


def _seconds(run: Run, plan: Plan, *, turns: int | None = None) -> list[float]:
    """The shortest of a few calls, for each turn."""
    return [min(_once(run) for _ in range(3)) for _ in range(turns or plan.turns(5))]


def _once(run: Run) -> float:
    began_s = perf_counter()
    run()
    return perf_counter() - began_s


def _row(
    case: str,
    measure: str,
    values: Sequence[float],
    seconds: Sequence[float],
    target: Target | None = None,
) -> Row:
    return Row(
        case=case,
        measure=measure,
        value=median(values),
        target=target,
        seconds={measure: tuple(seconds)} if seconds else {},
        spread=(min(values), max(values)),
    )
