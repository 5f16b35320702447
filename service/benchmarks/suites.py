"""The benchmark suites: what each measures, the columns of its rows, and how it runs.

Three suites run on the engine's device. The suite `serving` sends load to this server from another
process.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from engine.async_engine import AsyncEngine
from engine.benchmarks.attention import AttentionPlan, AttentionRow, attention_rows
from engine.benchmarks.encoder import ATTENTIONS, EncoderPlan, EncoderRow, encoder_rows
from engine.benchmarks.quality import LEAST_TOKENS, QualityPlan, QualityRow, quality_rows
from engine.model.attention import KINDS
from engine.model.embedding_model import EmbeddingModel
from service.addresses import Target
from service.errors import NotAvailable

Value: TypeAlias = str | int | float
Row: TypeAlias = Mapping[str, Value]
Field: TypeAlias = Literal["attentions", "dtypes", "repeats", "seconds", "training"]


@dataclass(frozen=True, kw_only=True)
class BenchmarkPlan:
    """All parameters of one run, checked. Made by `plan.checked_plan`."""

    suite: str
    model: str
    lengths: tuple[int, ...]
    attentions: tuple[str, ...]
    dtypes: tuple[str, ...]
    repeats: int
    seconds: float
    """How long to measure each point, for suites that run for a time."""
    training: bool = False
    """Whether to measure a training step instead of a forward pass."""


@dataclass(frozen=True)
class Measure:
    """A numeric column of the rows, by which runs are compared."""

    name: str
    unit: str
    better: Literal["lower", "higher"]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What a suite can measure."""

    engine: AsyncEngine
    server: Target | None
    """The address of this server; None if it does not listen."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    name: str
    about: str
    fields: tuple[Field, ...]
    """The fields of a plan that the suite uses, besides lengths."""
    lengths: tuple[int, ...]
    least_length: int = 1
    attentions: tuple[str, ...] = ()
    known_attentions: tuple[str, ...] = ()
    labels: tuple[str, ...]
    """The columns that identify a line of a plot."""
    x: Measure
    measures: tuple[Measure, ...]
    """The first one is the y axis of plots."""
    grows_with_text: bool
    """Whether plots show guides of linear and quadratic growth."""
    rows: Callable[[Bench, BenchmarkPlan], AsyncGenerator[Row, None]]
    num_rows: Callable[[BenchmarkPlan], int]

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that match the rows of two runs."""
        return (*self.labels, self.x.name)

    def key(self, row: Row) -> tuple[Value, ...]:
        return tuple(row[name] for name in self.key_columns)


SHARES = (0.25, 0.5, 0.75, 1.0, 1.5)
"""The offered loads of the serving suite, as shares of the server's capacity."""


async def serving_rows(bench: Bench, plan: BenchmarkPlan) -> AsyncGenerator[Row, None]:
    if bench.server is None:
        raise NotAvailable(
            "the suite serving needs a server that listens, and this one does not",
            param="suite",
            actual=plan.suite,
        )
    server = bench.server
    if server.needs_certificate:
        raise NotAvailable(
            "the suite serving cannot connect: it has no client certificate, and "
            "LLN_TLS_CLIENT_CA_FILE requires one",
            param="suite",
            actual=plan.suite,
        )
    load = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "service.benchmarks.load"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    wanted = {
        "host": server.host,
        "port": server.port,
        "headers": dict(server.headers),
        "tls": server.tls,
        "verify": server.verify,
        "ca_file": server.ca_file,
        "model": plan.model,
        "lengths": plan.lengths,
        "seconds": plan.seconds,
        "shares": SHARES,
    }
    try:
        async for row in _rows(load, json.dumps(wanted).encode()):
            yield row
    finally:
        if load.returncode is None:
            load.kill()
        await load.wait()


async def _rows(load: asyncio.subprocess.Process, plan: bytes) -> AsyncIterator[dict[str, Any]]:
    assert load.stdin is not None  # all three are pipes
    assert load.stdout is not None
    assert load.stderr is not None
    load.stdin.write(plan)
    load.stdin.close()
    async for line in load.stdout:
        yield json.loads(line)
    if await load.wait():
        reason = (await load.stderr.read()).decode(errors="replace").strip()
        last = reason.splitlines()[-1][:200] if reason else f"it ended with {load.returncode}"
        raise NotAvailable(f"the load generator failed: {last}")


_TOKENS = Measure("tokens", "tokens", "lower")
_SECONDS = Measure("seconds", "s", "lower")
_PEAK = Measure("peak_bytes", "bytes", "lower")
_TOKENS_PER_S = Measure("tokens_per_s", "tokens/s", "higher")


async def _attention_rows(bench: Bench, plan: BenchmarkPlan) -> AsyncGenerator[Row, None]:
    def steps(model: EmbeddingModel) -> Iterator[tuple[AttentionRow, ...]]:
        return attention_rows(
            AttentionPlan(
                model=model,
                lengths=plan.lengths,
                attentions=plan.attentions,
                dtypes=plan.dtypes,
                repeats=plan.repeats,
            )
        )

    async for row in bench.engine.measure(steps, model=plan.model):
        yield asdict(row)


async def _encoder_rows(bench: Bench, plan: BenchmarkPlan) -> AsyncGenerator[Row, None]:
    def steps(model: EmbeddingModel) -> Iterator[tuple[EncoderRow, ...]]:
        return encoder_rows(
            EncoderPlan.checked(
                plan.lengths, plan.attentions, plan.repeats, model, training=plan.training
            )
        )

    async for row in bench.engine.measure(steps, model=plan.model):
        # Peak memory is None on devices that do not report it.
        yield {name: value for name, value in asdict(row).items() if value is not None}


async def _quality_rows(bench: Bench, plan: BenchmarkPlan) -> AsyncGenerator[Row, None]:
    def steps(model: EmbeddingModel) -> Iterator[tuple[QualityRow, ...]]:
        return quality_rows(
            QualityPlan(model=model, lengths=plan.lengths, attentions=plan.attentions)
        )

    async for row in bench.engine.measure(steps, model=plan.model):
        yield asdict(row)


_ALL = (
    Suite(
        name="attention",
        about="the attention of one layer: our kernels and torch's SDPA",
        fields=("attentions", "dtypes", "repeats"),
        lengths=(512, 2048, 8192),
        attentions=("softmax", "lln_diag"),
        known_attentions=ATTENTIONS,
        labels=("attention", "dtype"),
        x=_TOKENS,
        measures=(_SECONDS, _TOKENS_PER_S),
        grows_with_text=True,
        rows=_attention_rows,
        num_rows=lambda plan: len(plan.lengths) * len(plan.attentions) * len(plan.dtypes),
    ),
    Suite(
        name="encoder",
        about="the whole model, forward pass or training step: time and memory by length",
        fields=("attentions", "repeats", "training"),
        lengths=(512, 2048, 8192),
        attentions=("softmax", "lln_diag"),
        known_attentions=ATTENTIONS,
        labels=("attention", "work"),
        x=_TOKENS,
        measures=(_SECONDS, _TOKENS_PER_S, _PEAK),
        grows_with_text=True,
        rows=_encoder_rows,
        num_rows=lambda plan: len(plan.lengths) * len(plan.attentions),
    ),
    Suite(
        name="serving",
        about="this server under load with requests of these lengths, by share of its capacity",
        fields=("seconds",),
        lengths=(16, 64, 256),
        labels=(),
        x=Measure("share", "of capacity offered", "higher"),
        measures=(
            Measure("p95_s", "s", "lower"),
            Measure("p50_s", "s", "lower"),
            Measure("p99_s", "s", "lower"),
            Measure("answered_per_s", "requests/s", "higher"),
            _TOKENS_PER_S,
        ),
        grows_with_text=False,
        rows=serving_rows,
        num_rows=lambda _: len(SHARES),
    ),
    Suite(
        name="quality",
        about="cosine to the published softmax model's vectors of the same text",
        fields=("attentions",),
        lengths=(256, 384, 512, 2048),
        least_length=LEAST_TOKENS,
        attentions=("lln_diag", "block_diagonal"),
        known_attentions=KINDS,
        labels=("attention",),
        x=_TOKENS,
        measures=(
            Measure("mean_cosine", "cosine", "higher"),
            Measure("least_cosine", "cosine", "higher"),
        ),
        grows_with_text=False,
        rows=_quality_rows,
        num_rows=lambda plan: len(plan.lengths) * len(plan.attentions),
    ),
)

SUITES: Mapping[str, Suite] = {suite.name: suite for suite in _ALL}
KNOWN_ATTENTIONS = tuple(dict.fromkeys(name for suite in _ALL for name in suite.known_attentions))
