"""How fast this machine encodes, by length and kind of attention."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from time import perf_counter

import numpy as np
import torch

from engine.errors import InvalidInput
from engine.model.attention import KINDS
from engine.model.embedding_model import EmbeddingModel
from engine.types import BenchmarkResult, BenchmarkRow

MAX_POINTS = 64
MAX_REPEATS = 100


@dataclass(frozen=True, kw_only=True)
class BenchmarkPlan:
    lengths: tuple[int, ...]
    models: tuple[EmbeddingModel, ...]  # the same weights under each attention
    repeats: int

    @classmethod
    def checked(
        cls,
        lengths: Sequence[int],
        attentions: Sequence[str],
        repeats: int,
        model: EmbeddingModel,
    ) -> BenchmarkPlan:
        _check_count("repeats", repeats, MAX_REPEATS)
        _check_count("lengths", len(lengths) * len(attentions), MAX_POINTS)
        for kind in attentions:
            if kind not in KINDS:
                known = ", ".join(KINDS)
                raise InvalidInput(
                    f"attentions holds {kind!r}; known are {known}",
                    param="attentions",
                    limit=known,
                    actual=kind,
                )
        models = tuple(model.with_attention(kind) for kind in attentions)
        longest = min(one.info.max_tokens for one in models)
        for length in lengths:
            _check_count("lengths", length, longest)
        return cls(lengths=tuple(lengths), models=models, repeats=repeats)


@torch.no_grad()
def encoder_rows(plan: BenchmarkPlan) -> Iterator[tuple[BenchmarkRow, ...]]:
    """One row a point. Yields nothing after every layer, so that other work can run there."""
    for length, model in product(plan.lengths, plan.models):
        seconds = []
        for repeat in range(plan.repeats + 1):
            spent = 0.0
            for layer_s in _timed_layers(model, length):
                spent += layer_s
                yield ()
            if repeat:  # the first pass warms caches and memory
                seconds.append(spent)
        yield (_row(model, length, seconds),)


def benchmark_result(model: EmbeddingModel, rows: Sequence[BenchmarkRow]) -> BenchmarkResult:
    device = model.encoder.device
    on_gpu = device.type == "cuda"
    machine = {
        "device": torch.cuda.get_device_name(device) if on_gpu else platform.processor() or "cpu",
        "device_type": device.type,
        "dtype": model.info.dtype,
        "threads": str(torch.get_num_threads()),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "model": model.name,
        "revision": model.info.revision,
    }
    return BenchmarkResult(suite="encoder", rows=tuple(rows), machine=machine)


def _timed_layers(model: EmbeddingModel, length: int) -> Iterator[float]:
    vocabulary = len(model.encoder.weights.words)
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, vocabulary, length))
    layers = model.encoder.walk(ids.to(model.encoder.device), [0, length])
    while True:
        started_at = perf_counter()
        if next(layers, None) is None:
            return
        if model.encoder.device.type == "cuda":
            torch.cuda.synchronize()
        yield perf_counter() - started_at


def _row(model: EmbeddingModel, length: int, seconds: Sequence[float]) -> BenchmarkRow:
    typical = median(seconds)
    return BenchmarkRow(
        attention=model.info.attention[0],
        tokens=length,
        seconds=typical,
        tokens_per_s=length / typical,
        repeats=len(seconds),
    )


def _check_count(param: str, value: int, limit: int) -> None:
    if not 1 <= value <= limit:
        raise InvalidInput(
            f"{param} must be 1 to {limit}, got {value}", param=param, limit=limit, actual=value
        )
