"""Models of language, pre-trained or fine-tuned: their experiments, in two budgets."""

from __future__ import annotations

from dataclasses import replace

from engine.evaluation.reading_documents import DocumentLimits
from engine.experiments.contest import Contest
from engine.experiments.contests.finetune import FinetuneContest
from engine.experiments.contests.half import HalfContest, Scaling
from engine.experiments.contests.masked import MaskedContest
from engine.experiments.experiment import SMALL_RATES, Experiment, budget_of
from engine.experiments.selectivity.contest import SelectivityContest
from engine.experiments.tasks.masked_text import TextSource
from engine.experiments.training import TrainingBudget


def _small_masked() -> Contest:
    return MaskedContest(
        source=TextSource(corpora=("speeches",), vocabulary=2048, length=512),
        layers=2,
        width=128,
        heads=4,
        block_size=64,
        budget=budget_of(steps=500, batch=1, examples=24),
        watched=5,
        watched_tokens=256,
        rates=SMALL_RATES,
        tuning_seeds=1,
    )


def full_masked() -> MaskedContest:
    """About a night of one core for four kinds from three seeds."""
    corpora = ("speeches", "manuals", "kernel", "python", "postgres")
    return MaskedContest(
        source=TextSource(corpora=corpora, vocabulary=8192, length=2048),
        layers=4,
        width=256,
        heads=8,
        block_size=64,
        budget=budget_of(steps=300, batch=4, examples=64),
        watched=11,
        watched_tokens=512,
        rates=(3e-4, 1e-3, 3e-3),
        tuning_seeds=1,
    )


def small_text_model(*, steps: int, rates: tuple[float, ...], tuning_seeds: int) -> MaskedContest:
    """The smallest that attention still makes better."""
    return MaskedContest(
        source=TextSource(corpora=("speeches",), vocabulary=512, length=256),
        layers=2,
        width=64,
        heads=2,
        block_size=64,
        budget=budget_of(steps=steps, batch=2, examples=16),
        watched=2,
        watched_tokens=256,
        rates=rates,
        tuning_seeds=tuning_seeds,
    )


def _half(masked: MaskedContest, *, double_after: int) -> Contest:
    return HalfContest(masked=masked, scaling=Scaling(first=2.0**16, double_after=double_after))


def _small_half() -> Contest:
    return _half(small_text_model(steps=150, rates=SMALL_RATES, tuning_seeds=1), double_after=10)


def _full_half() -> Contest:
    return _half(full_masked(), double_after=100)


def _small_finetune() -> Contest:
    return FinetuneContest(
        model="default",
        length=1024,
        trained_layers=2,
        budget=budget_of(steps=40, batch=1, examples=50),
        rates=(1e-4, 1e-3),
        tuning_seeds=1,
    )


def _full_finetune() -> Contest:
    return FinetuneContest(
        model="default",
        length=2048,
        trained_layers=6,
        budget=budget_of(steps=500, batch=8, examples=1000),
        rates=(1e-5, 3e-5, 1e-4, 3e-4),
        tuning_seeds=1,
    )


_LEARNED = ("kernel", "python", "speeches", "manuals", "postgres")
_CHOSEN_ON = ("standards", "letters", "images")
_JUDGED_ON = (
    *("essays", "accounts", "music", "statistics", "biology", "colours", "skies"),
    *("learned", "fiction", "licences", "scripture"),
)


def _small_selectivity() -> Contest:
    """The rate was chosen beforehand, on the validation corpora."""
    return SelectivityContest(
        model="default",
        block=256,
        length=2048,
        trained_layers=2,
        documents=12,
        corpora=_LEARNED,
        validation=_CHOSEN_ON,
        test=_JUDGED_ON,
        limits=DocumentLimits(shortest=1500, longest=4096, tokens=12_000, passages=40),
        budget=_without_decay(steps=32, batch=2, examples=45),
        rates=(1e-4,),
        tuning_seeds=0,
    )


def _full_selectivity() -> Contest:
    return SelectivityContest(
        model="default",
        block=256,
        length=6144,
        trained_layers=6,
        documents=200,
        corpora=_LEARNED,
        validation=_CHOSEN_ON,
        test=_JUDGED_ON,
        limits=DocumentLimits(tokens=100_000, passages=40),
        budget=_without_decay(steps=400, batch=4, examples=45),
        rates=(3e-5, 1e-4, 3e-4),
        tuning_seeds=1,
    )


def _without_decay(*, steps: int, batch: int, examples: int) -> TrainingBudget:
    """As `lln adapt` trains."""
    return replace(budget_of(steps=steps, batch=batch, examples=examples), weight_decay=0.0)


LANGUAGE_EXPERIMENTS = (
    Experiment(
        "mlm",
        "attention kinds: masked-language-model pre-training on real text, against softmax",
        {"small": _small_masked, "full": full_masked},
    ),
    Experiment(
        "finetune",
        "softmax, LLN+Diag and blocks alone: the default model fine-tuned on labelled mail",
        {"small": _small_finetune, "full": _full_finetune},
    ),
    Experiment(
        "float16",
        "attention kinds: masked-language-model training in float16, and the loss scale it needs",
        {"small": _small_half, "full": _full_half},
    ),
    Experiment(
        "selectivity",
        "LLN+Diag with a more selective branch: late chunks that learn to know their document",
        {"small": _small_selectivity, "full": _full_selectivity},
    ),
)
