"""Every experiment by name, in two budgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Literal, TypeAlias

from engine.errors import find_named, unknown_name
from engine.experiments.attention_problems import ProblemShape
from engine.experiments.contest import Contest, ContestPlan
from engine.experiments.finetune_contest import FinetuneContest
from engine.experiments.listops import ListOps
from engine.experiments.masked_contest import MaskedContest
from engine.experiments.masked_text import TextSource
from engine.experiments.matching import Matching
from engine.experiments.network_contest import NetworkContest
from engine.experiments.optimiser_contest import OptimiserContest
from engine.experiments.pathfinder import Pathfinder
from engine.experiments.pixels import Patches, Pixels
from engine.experiments.tasks import Majority, Recall, TokenTask
from engine.experiments.token_contest import TokenContest
from engine.experiments.training import TrainingBudget

Budget: TypeAlias = Literal["small", "full"]
BUDGETS: tuple[Budget, ...] = ("small", "full")


@dataclass(frozen=True)
class Experiment:
    name: str
    about: str
    contests: Mapping[str, Callable[[], Contest]]  # by budget


def find_experiment(name: str) -> Experiment:
    return find_named("experiment", name, EXPERIMENTS, param="experiment")


def plan_experiment(
    name: str, *, budget: str, methods: Sequence[str] | None, seeds: int, threads: int
) -> ContestPlan:
    """A checked plan. The reference always takes part, and methods keep the contest's order."""
    experiment = find_experiment(name)
    contest = find_named("budget", budget, experiment.contests, param="budget")()
    named = contest.methods if methods is None else (contest.methods[0], *methods)
    for method in named:
        if method not in contest.methods:
            raise unknown_name("method", method, contest.methods, param="methods")
    chosen = tuple(method for method in contest.methods if method in named)
    return ContestPlan(contest=contest, methods=chosen, seeds=seeds, threads=threads)


def _training(*, steps: int, batch: int, examples: int) -> TrainingBudget:
    return TrainingBudget(
        steps=steps,
        batch=batch,
        warm_up=max(1, steps // 10),
        weight_decay=0.01,
        clip=1.0,
        examples=examples,
    )


def _small(task: TokenTask, training: TrainingBudget) -> Contest:
    return _contest(task, training, rates=(1e-3, 3e-3, 1e-2, 3e-2), tuning_seeds=1)


def _full(task: TokenTask, training: TrainingBudget) -> Contest:
    return _contest(task, training, rates=(3e-4, 1e-3, 3e-3, 1e-2, 3e-2), tuning_seeds=2)


def _contest(
    task: TokenTask,
    training: TrainingBudget,
    *,
    rates: tuple[float, ...],
    tuning_seeds: int,
    layers: int = 2,
    block_size: int = 32,
) -> Contest:
    return TokenContest(
        task=task,
        layers=layers,
        width=64,
        heads=2,
        block_size=block_size,
        budget=training,
        rates=rates,
        tuning_seeds=tuning_seeds,
    )


def _small_recall() -> Contest:
    task = Recall(length=256, keys=8, values=8)
    return _small(task, _training(steps=250, batch=8, examples=128))


def _full_recall() -> Contest:
    task = Recall(length=512, keys=16, values=16)
    return _full(task, _training(steps=3000, batch=32, examples=1024))


def _small_majority() -> Contest:
    task = Majority(length=256, symbols=8, favoured=0.1)
    return _small(task, _training(steps=100, batch=16, examples=512))


def _full_majority() -> Contest:
    task = Majority(length=1024, symbols=8, favoured=0.05)
    return _full(task, _training(steps=1000, batch=32, examples=2048))


_SMALL_RATES = (1e-3, 3e-3, 1e-2)
"""For the tasks whose trials take longer."""


def _small_listops() -> Contest:
    task = ListOps(length=128, max_depth=5, max_arguments=5)
    training = _training(steps=200, batch=16, examples=1024)
    return _contest(task, training, rates=_SMALL_RATES, tuning_seeds=1)


def _full_listops() -> Contest:
    task = ListOps(length=2000, max_depth=10, max_arguments=10)
    return _full(task, _training(steps=5000, batch=32, examples=2048))


def _small_matching() -> Contest:
    task = Matching(length=256, corpora=("speeches", "manuals"))
    training = _training(steps=300, batch=16, examples=512)
    return _contest(task, training, rates=_SMALL_RATES, tuning_seeds=1)


def _full_matching() -> Contest:
    task = Matching(length=4000, corpora=("speeches", "manuals", "kernel", "python", "postgres"))
    return _full(task, _training(steps=5000, batch=32, examples=2048))


def _small_pixels() -> Contest:
    task = Pixels(shrink=2, levels=16)
    training = _training(steps=200, batch=16, examples=1024)
    return _contest(task, training, rates=_SMALL_RATES, tuning_seeds=1)


def _full_pixels() -> Contest:
    task = Pixels(shrink=1, levels=256)
    return _full(task, _training(steps=20_000, batch=32, examples=10_000))


def _small_pathfinder() -> Contest:
    task = Pathfinder(side=16, path=12, distractors=1, marks_apart=(5, 10), pictures=2000)
    training = _training(steps=200, batch=16, examples=1024)
    return _contest(task, training, rates=_SMALL_RATES, tuning_seeds=1)


def _full_pathfinder() -> Contest:
    task = Pathfinder(side=32, path=24, distractors=4, marks_apart=(8, 20), pictures=50_000)
    return _full(task, _training(steps=50_000, batch=32, examples=10_000))


def _vision(training: TrainingBudget, rates: tuple[float, ...], tuning_seeds: int) -> Contest:
    task = Patches(side=4)
    return _contest(
        *(task, training), rates=rates, tuning_seeds=tuning_seeds, layers=4, block_size=16
    )


def _small_vision() -> Contest:
    return _vision(_training(steps=200, batch=16, examples=1024), _SMALL_RATES, 1)


def _full_vision() -> Contest:
    return _vision(_training(steps=20_000, batch=64, examples=10_000), (3e-4, *_SMALL_RATES), 2)


def _small_masked() -> Contest:
    return MaskedContest(
        source=TextSource(corpora=("speeches",), vocabulary=2048, length=512),
        layers=2,
        width=128,
        heads=4,
        block_size=64,
        budget=_training(steps=500, batch=1, examples=24),
        watched=5,
        watched_tokens=256,
        rates=_SMALL_RATES,
        tuning_seeds=1,
    )


def _full_masked() -> MaskedContest:
    """A night of one core for four kinds."""
    corpora = ("speeches", "manuals", "kernel", "python", "postgres")
    return MaskedContest(
        source=TextSource(corpora=corpora, vocabulary=8192, length=2048),
        layers=4,
        width=256,
        heads=8,
        block_size=64,
        budget=_training(steps=500, batch=4, examples=64),
        watched=11,
        watched_tokens=512,
        rates=(3e-4, 1e-3, 3e-3),
        tuning_seeds=1,
    )


def _small_finetune() -> Contest:
    return FinetuneContest(
        model="default",
        length=1024,
        trained_layers=2,
        budget=_training(steps=40, batch=1, examples=50),
        rates=(1e-4, 1e-3),
        tuning_seeds=1,
    )


def _full_finetune() -> Contest:
    return FinetuneContest(
        model="default",
        length=2048,
        trained_layers=6,
        budget=_training(steps=500, batch=8, examples=1000),
        rates=(1e-5, 3e-5, 1e-4, 3e-4),
        tuning_seeds=1,
    )


def _small_transformer() -> Contest:
    return NetworkContest(
        masked=MaskedContest(
            source=TextSource(corpora=("speeches",), vocabulary=512, length=256),
            layers=2,
            width=64,
            heads=2,
            block_size=64,
            budget=_training(steps=300, batch=2, examples=16),
            watched=2,
            watched_tokens=256,
            rates=(),
            tuning_seeds=0,
        ),
        target=4.3,
        measured_every=10,
        rates=(1e-3, 3e-3, 1e-2, 3e-2),
        tuning_seeds=1,
    )


def _full_transformer() -> Contest:
    masked = replace(_full_masked(), budget=_training(steps=4000, batch=4, examples=64))
    return NetworkContest(
        masked=masked,
        target=4.0,
        measured_every=25,
        rates=(1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1),
        tuning_seeds=2,
    )


def _small_optimisers(problem: str) -> Contest:
    shape = ProblemShape(heads=2, width=16, head_dim=8, condition=10, sharpness=0.5)
    return _optimisers(problem, shape, max_steps=1000)


def _full_optimisers(problem: str) -> Contest:
    shape = ProblemShape(heads=4, width=64, head_dim=16, condition=30, sharpness=0.5)
    return _optimisers(problem, shape, max_steps=3000)


def _optimisers(problem: str, shape: ProblemShape, *, max_steps: int) -> Contest:
    return OptimiserContest(
        problem=problem,
        shape=shape,
        max_steps=max_steps,
        target=0.01,
        # Wide, since the forms scale their steps differently.
        rates=(1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
        tuning_seeds=2,
    )


def _budgets(
    small: Callable[[str], Contest], full: Callable[[str], Contest], problem: str
) -> Mapping[str, Callable[[], Contest]]:
    return {"small": partial(small, problem), "full": partial(full, problem)}


EXPERIMENTS: Mapping[str, Experiment] = MappingProxyType(
    {
        one.name: one
        for one in (
            Experiment(
                "recall",
                "attention kinds: the value of a key that stands outside the question's block",
                {"small": _small_recall, "full": _full_recall},
            ),
            Experiment(
                "majority",
                "attention kinds: the most frequent symbol of the whole text",
                {"small": _small_majority, "full": _full_majority},
            ),
            Experiment(
                "listops",
                "attention kinds: the value of a nested list of operations",
                {"small": _small_listops, "full": _full_listops},
            ),
            Experiment(
                "matching",
                "attention kinds: whether two stretches of bytes are of one document",
                {"small": _small_matching, "full": _full_matching},
            ),
            Experiment(
                "pixels",
                "attention kinds: what a picture shows, read as a sequence of pixels",
                {"small": _small_pixels, "full": _full_pixels},
            ),
            Experiment(
                "pathfinder",
                "attention kinds: whether two marks in a picture are ends of one dashed curve",
                {"small": _small_pathfinder, "full": _full_pathfinder},
            ),
            Experiment(
                "vision",
                "attention kinds: what a picture shows, in a small vision transformer of patches",
                {"small": _small_vision, "full": _full_vision},
            ),
            Experiment(
                "mlm",
                "attention kinds: masked-language-model pre-training on real text, against softmax",
                {"small": _small_masked, "full": _full_masked},
            ),
            Experiment(
                "finetune",
                "softmax, LLN+Diag and blocks alone: the default model fine-tuned on labelled mail",
                {"small": _small_finetune, "full": _full_finetune},
            ),
            Experiment(
                "quadratic",
                "optimisers: steps to a hundredth of the loss on a quadratic, whose Hessian is the "
                "Fisher matrix of attention patterns",
                _budgets(_small_optimisers, _full_optimisers, "quadratic"),
            ),
            Experiment(
                "logistic",
                "optimisers: the same on the divergence of patterns from given ones, a logistic "
                "regression",
                _budgets(_small_optimisers, _full_optimisers, "logistic"),
            ),
            Experiment(
                "transformer",
                "optimisers: steps until a masked language model's held-out loss reaches a target",
                {"small": _small_transformer, "full": _full_transformer},
            ),
        )
    }
)
