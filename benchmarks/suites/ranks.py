"""One document over several ranks: the same answer, and what is exchanged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time, sleep

import numpy as np
from torch.distributed import HashStore  # type: ignore[attr-defined]

from benchmarks.rows import Plan, Row, Target
from benchmarks.workbench import Workbench
from engine.config import EngineConfig
from engine.execution.inputs import PreparedText
from engine.execution.model_runner import TiledRun
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.ranks.fleet import Fleet
from engine.ranks.group import Group
from engine.ranks.stretch_run import RankRun, divide_text, open_rank
from engine.types import Ids, Span, Vector

RANKS = (1, 2, 3, 4, 8)
LENGTHS, QUICK_LENGTHS = (1, 511, 513, 8_192, 65_536, 262_144), (1, 511, 513, 8_192)
LONGEST, QUICK_LONGEST = 262_144, 16_384
CHUNK_TOKENS = 256
EVERY_TOKEN_UPTO, FURTHER_STEP = 8_192, 16
TURNS = 2
EQUAL = Target("<=", 20)
FASTER = Target("<=", 0.62)
FLAT = Target("<=", 1.0)
_FORMS_WITHIN_S = 60.0


@dataclass(frozen=True)
class Reading:
    """One text, read once."""

    vectors: Vector  # the whole text, its chunks, then states of tokens; each of length 1
    seconds: float
    cpu_s: float  # of the busiest rank
    bytes_sent: int = 0  # by the first rank, in all exchanges before the layers


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    model = load_model(config=_config(1))
    lengths = QUICK_LENGTHS if plan.quick else LENGTHS
    texts = {length: _text(bench, length) for length in lengths}
    alone = {length: _read(TiledRun(model, text)) for length, text in texts.items()}
    for num_ranks in RANKS:
        with _fleet(model, num_ranks) as fleet:
            apart = {length: _over(fleet, model, text) for length, text in texts.items()}
        for length in lengths:
            yield _difference(apart[length], alone[length], length, num_ranks)
        if num_ranks > 1:
            yield _flatness(apart, num_ranks, len(model.encoder.weights.layers))
            yield _busiest(apart[lengths[-1]], alone[lengths[-1]], lengths[-1], num_ranks)


def measure_time(bench: Workbench, plan: Plan) -> Iterator[Row]:
    """One rank of one core, two ranks of a core each, and what this machine's cores allow: two
    unrelated processes side by side, each of which reads half of the text."""
    model = load_model(config=_config(1))
    text = _text(bench, QUICK_LONGEST if plan.quick else LONGEST)
    half = _text(bench, len(text.ids) // 2)
    taken: dict[str, list[float]] = {"1 rank": [], "2 ranks": [], "2 unrelated halves": []}
    with _fleet(model, 2) as fleet, ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        list(pool.map(_seconds_alone, [half] * 2))
        for _ in range(plan.turns(TURNS)):
            taken["1 rank"].append(_read(TiledRun(model, text)).seconds)
            taken["2 ranks"].append(_over(fleet, model, text).seconds)
            taken["2 unrelated halves"].append(max(pool.map(_seconds_alone, [half] * 2)))
    case, target = f"{len(text.ids):,} tokens", None if plan.quick else FASTER
    one, ranks, halves = taken
    yield _ratio(case, "2 ranks of a core each / 1 rank of one core", taken, ranks, one, target)
    yield _ratio(case, "2 unrelated halves, a core each / the whole, one core", taken, halves, one)
    yield _ratio(case, "2 ranks of a core each / 2 unrelated halves", taken, ranks, halves)


def _ratio(
    case: str,
    measure: str,
    taken: dict[str, list[float]],
    over: str,
    under: str,
    target: Target | None = None,
) -> Row:
    ratios = [above / below for above, below in zip(taken[over], taken[under], strict=True)]
    return Row(
        case=case,
        measure=measure,
        value=float(np.median(ratios)),
        target=target,
        seconds={name: tuple(taken[name]) for name in (over, under)},
        spread=(min(ratios), max(ratios)),
    )


@cache
def _model_alone() -> EmbeddingModel:
    """The model of a process that reads alone."""
    return load_model(config=_config(1))


def _seconds_alone(text: PreparedText) -> float:
    return _read(TiledRun(_model_alone(), text)).seconds


def _difference(apart: Reading, alone: Reading, length: int, num_ranks: int) -> Row:
    distances = np.abs(apart.vectors - alone.vectors).max(axis=1)
    num_chunks = len(_chunks(length))
    parts = np.split(distances, [1, 1 + num_chunks])
    whole, chunks, tokens = (float(part.max()) for part in parts)
    is_same = "the same bits" if float(distances.max()) == 0 else "not the same bits"
    return Row(
        case=f"{length:,} tokens, {num_ranks} ranks",
        measure="largest difference of a component, in 1e-7",
        value=float(distances.max()) * 1e7,
        target=EQUAL,
        seconds={"over ranks": (apart.seconds,), "alone": (alone.seconds,)},
        note=f"whole {whole:.1e}, chunks {chunks:.1e}, token states {tokens:.1e}; {is_same}",
    )


def _busiest(apart: Reading, alone: Reading, length: int, num_ranks: int) -> Row:
    """What other work on the machine changes less than the time by the clock."""
    return Row(
        case=f"{length:,} tokens, {num_ranks} ranks",
        measure="CPU seconds of the busiest rank / of one rank alone",
        value=apart.cpu_s / alone.cpu_s,
        seconds={"busiest rank": (apart.cpu_s,), "alone": (alone.cpu_s,)},
    )


def _flatness(apart: dict[int, Reading], num_ranks: int, num_layers: int) -> Row:
    """Texts of one block have no LLN state, so the shortest that counts is longer."""
    each = {
        length: reading.bytes_sent / num_layers for length, reading in apart.items() if length > 512
    }
    shortest, longest = each[min(each)], each[max(each)]
    return Row(
        case=f"{min(each):,} to {max(each):,} tokens, {num_ranks} ranks",
        measure="bytes a rank sends before a layer, longest / shortest text",
        value=longest / shortest,
        target=FLAT,
        seconds={},
        note=", ".join(f"{length:,} tokens: {sent:,.0f}" for length, sent in each.items()),
    )


def _text(bench: Workbench, length: int) -> PreparedText:
    """The beginning of real text, as ids, with chunks, and with single tokens as further spans."""
    tokenizer = bench.lln_diag.model.tokenizer
    ids: Ids = tokenizer.encode_batch([bench.text.speeches(max(length + 64, 600))])[0].ids[:length]
    step = 1 if length <= EVERY_TOKEN_UPTO else FURTHER_STEP
    tokens = [Span(at, at + 1) for at in range(0, length, step)]
    return PreparedText(
        ids=np.ascontiguousarray(ids),
        spans=(Span(0, length), *_chunks(length), *tokens),
        chunks=(),
        num_tokens=length,
        dropped=None,
    )


def _chunks(length: int) -> list[Span]:
    return [Span(at, min(at + CHUNK_TOKENS, length)) for at in range(0, length, CHUNK_TOKENS)]


def _config(num_ranks: int) -> EngineConfig:
    return EngineConfig(device="cpu", ranks=num_ranks, num_threads=1, min_rank_tokens=1)


@contextmanager
def _fleet(model: EmbeddingModel, num_ranks: int) -> Iterator[Fleet | None]:
    if num_ranks == 1:
        yield None
        return
    fleet = Fleet([model], _config(num_ranks))
    fleet.start()
    try:
        yield fleet
    finally:
        fleet.stop()


def _over(fleet: Fleet | None, model: EmbeddingModel, text: PreparedText) -> Reading:
    if fleet is None:
        lone = Group(HashStore(), 0, 0, 1)
        (part,) = divide_text(model, text, 1)
        return _read(open_rank(model, part, lone, keep_projections=True))
    ends_at = perf_counter() + _FORMS_WITHIN_S
    while perf_counter() < ends_at:
        sent_before = fleet.bytes_sent
        before = {rank: _cpu_seconds(pid) for rank, pid in fleet.process_ids().items()}
        run = fleet.try_open(model, text, keep_projections=True)
        if run is not None:
            found = _read(run)
            others = [_cpu_seconds(pid) - before[rank] for rank, pid in fleet.process_ids().items()]
            return replace(
                found,
                cpu_s=max(found.cpu_s, *others),
                bytes_sent=fleet.bytes_sent - sent_before,
            )
        sleep(0.05)
    raise RuntimeError("the ranks are not together")


def _read(run: RankRun) -> Reading:
    started_at, cpu_before = perf_counter(), process_time()
    with closing(run):
        while run.result is None:
            run.step()
    seconds, cpu_s = perf_counter() - started_at, process_time() - cpu_before
    return Reading(_directions(run.result), seconds, cpu_s)


def _cpu_seconds(pid: int) -> float:
    """What a process has used so far, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _directions(vectors: Vector) -> Vector:
    found: Vector = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return found
