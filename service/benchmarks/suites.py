"""The suites there are: what each measures, what its rows hold, and how it is run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import asdict

from engine.benchmarks.attention import AttentionPlan, AttentionRow, attention_rows
from engine.benchmarks.encoder import ATTENTIONS, EncoderPlan, EncoderRow, encoder_rows
from engine.benchmarks.quality import LEAST_TOKENS, QualityPlan, QualityRow, quality_rows
from engine.model.attention import KINDS
from engine.model.embedding_model import EmbeddingModel
from service.benchmarks.serving import SHARES, serving_rows
from service.benchmarks.suite import Bench, BenchmarkPlan, Measure, Row, Suite

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
        # Peak memory is not known everywhere.
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
        about="one layer's attention alone: the kernels beside torch's SDPA",
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
        about="the whole model, forward or a step of training: time and memory by length",
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
        about="this very server under requests of these lengths, by what share of its capacity "
        "is offered",
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
