"""How long `lln serve` takes from the command to a right vector and for texts of new lengths, and
its memory after texts.

Real servers, started one after the other with the models served by default and warm files.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks.rows import Plan, Row, Target, least_row
from benchmarks.servers import Served, our_server
from benchmarks.workbench import PUBLISHED_MODEL, Workbench
from engine.checkpoint.registry import DEFAULT_MODEL

DTYPES: Mapping[str, float] = {"float32": 0.99999, "int8": 0.99}
"""What is started, and the least cosine of a right vector to the engine's own in float32."""

READY_S = Target("<=", 3.0)
RESIDENT_MB = Target("<=", 400.0)
_MEMORY = {"VmRSS": "resident", "RssAnon": "of it anonymous", "VmHWM": "resident at the peak"}
_TURNS = 5
_NUM_TEXTS, _QUICK_NUM_TEXTS = 200, 20
_LENGTHS = (8, 16, 32, 64)
_MANY_LENGTHS = range(3, 131)
"""oneDNN makes a kernel for each number of rows that it multiplies, and keeps it."""
_NEW_LENGTHS = Target("<=", 1.15)

_LONG_TOKENS, _NUM_LONG = 16_384, 3
_REST_S = 3.0
"""A server gives freed memory back when it has had no work for a second."""


@dataclass(frozen=True)
class Started:
    """What one server did."""

    ready_s: float
    cpu_s: float  # of the processor, until the first vector
    first_vector_s: float
    cosine: float  # of the first vector
    memory_mb: Mapping[str, float]
    many_lengths_s: tuple[float, float]  # of the processor, for many lengths: at first, then again
    many_lengths_mb: float  # resident after texts of many lengths
    long_mb: float  # right after long texts of different lengths
    at_rest_mb: float  # some seconds later


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    number = _QUICK_NUM_TEXTS if plan.quick else _NUM_TEXTS
    texts = bench.text.passages([_LENGTHS[at % len(_LENGTHS)] for at in range(number)])
    others = bench.text.passages(_MANY_LENGTHS)
    num_long = 1 if plan.quick else _NUM_LONG
    long = bench.text.passages([_LONG_TOKENS - 1_000 * at for at in range(num_long)])
    expected = bench.lln_diag.embed(texts[:1])[0]
    turns: dict[str, list[Started]] = {dtype: [] for dtype in DTYPES}
    for _ in range(plan.turns(_TURNS) + 1):  # the first warms the files up
        for dtype, started in turns.items():
            started.append(_start(bench.threads, dtype, texts, others, long, expected))
    for dtype, started in turns.items():
        yield from _rows(dtype, started[1:], number)


def _start(
    threads: int,
    dtype: str,
    texts: Sequence[str],
    many: Sequence[str],
    long: Sequence[str],
    expected: NDArray[np.float32],
) -> Started:
    began_at = time.monotonic()
    models = f"{DEFAULT_MODEL},{PUBLISHED_MODEL}"
    with our_server(threads, LLN_ENGINE__DTYPE=dtype, LLN_MODELS=models) as served:
        first = _embed(served, texts[0])
        first_vector_s, cpu_s = time.monotonic() - began_at, served.cpu_s
        for text in texts[1:]:
            _embed(served, text)
        memory_mb = {field: served.memory_mb(field) for field in _MEMORY}
        many_s = (_processor_seconds(served, many), _processor_seconds(served, many))
        many_mb = served.memory_mb("VmRSS")
        long_mb = _resident_after(served, long)
        time.sleep(_REST_S)
        at_rest_mb = served.memory_mb("VmRSS")
    cosine = float(first @ expected)
    return Started(
        ready_s=served.ready_s,
        cpu_s=cpu_s,
        first_vector_s=first_vector_s,
        cosine=cosine,
        memory_mb=memory_mb,
        many_lengths_s=many_s,
        many_lengths_mb=many_mb,
        long_mb=long_mb,
        at_rest_mb=at_rest_mb,
    )


def _processor_seconds(served: Served, texts: Sequence[str]) -> float:
    before = served.cpu_s
    for text in texts:
        _embed(served, text)
    return served.cpu_s - before


def _resident_after(served: Served, texts: Sequence[str]) -> float:
    for text in texts:
        _embed(served, text)
    return served.memory_mb("VmRSS")


def _embed(served: Served, text: str) -> NDArray[np.float32]:
    request = urllib.request.Request(
        f"http://{served.target.host}:{served.target.port}/v1/embeddings",
        json.dumps({"model": DEFAULT_MODEL, "input": text}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return np.array(json.load(answer)["data"][0]["embedding"], dtype=np.float32)


def _rows(dtype: str, started: Sequence[Started], num_texts: int) -> Iterator[Row]:
    yield from _rows_of_time(dtype, started)
    yield _row_of_new_lengths(dtype, started)
    cosines = [one.cosine for one in started]
    right = Target(">=", DTYPES[dtype])
    yield least_row(cosines, case=dtype, measure="least cosine of the first vector", target=right)
    yield from _rows_of_memory(dtype, started, num_texts)


def _rows_of_time(dtype: str, started: Sequence[Started]) -> Iterator[Row]:
    seconds = {
        "ready": tuple(one.ready_s for one in started),
        "first vector": tuple(one.first_vector_s for one in started),
    }
    for name, taken in seconds.items():
        yield Row(
            case=f"{dtype}, two models",
            measure=f"seconds from the command to {name}",
            value=median(taken),
            target=READY_S,
            seconds={name: taken},
            spread=(min(taken), max(taken)),
        )
    cpu = tuple(one.cpu_s for one in started)
    yield Row(
        case=f"{dtype}, two models",
        measure="processor seconds until the first vector, on all cores",
        value=median(cpu),
        seconds={"processor": cpu},
        spread=(min(cpu), max(cpu)),
    )


def _row_of_new_lengths(dtype: str, started: Sequence[Started]) -> Row:
    first, again = zip(*(one.many_lengths_s for one in started), strict=True)
    ratios = [one / other for one, other in zip(first, again, strict=True)]
    return Row(
        case=f"{dtype}, texts of {len(_MANY_LENGTHS)} lengths",
        measure="processor time, the first time / the second",
        value=median(ratios),
        target=_NEW_LENGTHS,
        seconds={"the first time": first, "the second": again},
        spread=(min(ratios), max(ratios)),
    )


def _rows_of_memory(dtype: str, started: Sequence[Started], num_texts: int) -> Iterator[Row]:
    for field, what in _MEMORY.items():
        used = [one.memory_mb[field] for one in started]
        yield Row(
            case=f"{dtype}, after {num_texts} short texts",
            measure=f"MB {what}",
            value=median(used),
            target=RESIDENT_MB if (dtype, field) == ("int8", "VmRSS") else None,
            seconds={},
            spread=(min(used), max(used)),
        )
    afterwards = {
        f"after texts of {len(_MANY_LENGTHS)} lengths": [one.many_lengths_mb for one in started],
        f"right after long texts, up to {_LONG_TOKENS:,} tokens": [one.long_mb for one in started],
        f"{_REST_S:g} s later": [one.at_rest_mb for one in started],
    }
    for when, used in afterwards.items():
        yield Row(
            case=f"{dtype}, {when}",
            measure="MB resident",
            value=median(used),
            seconds={},
            spread=(min(used), max(used)),
        )
