"""Attention kinds on tasks with an answer: the experiments of every task, in two budgets."""

from __future__ import annotations

from engine.experiments.contest import Contest
from engine.experiments.contests.moments import MomentContest
from engine.experiments.contests.tokens import TokenContest
from engine.experiments.experiment import SMALL_RATES, Experiment, budget_of
from engine.experiments.tasks.listops import ListOps
from engine.experiments.tasks.mail_bytes import MailBytes
from engine.experiments.tasks.matching import Matching
from engine.experiments.tasks.pathfinder import Pathfinder
from engine.experiments.tasks.pixels import Patches, Pixels
from engine.experiments.tasks.task import Majority, Recall, TokenTask
from engine.experiments.training import TrainingBudget


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
) -> TokenContest:
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
    return _small(task, budget_of(steps=250, batch=8, examples=128))


def _full_recall() -> Contest:
    task = Recall(length=512, keys=16, values=16)
    return _full(task, budget_of(steps=3000, batch=32, examples=1024))


def _small_majority() -> Contest:
    task = Majority(length=256, symbols=8, favoured=0.1)
    return _small(task, budget_of(steps=100, batch=16, examples=512))


def _full_majority() -> Contest:
    task = Majority(length=1024, symbols=8, favoured=0.05)
    return _full(task, budget_of(steps=1000, batch=32, examples=2048))


def _small_listops() -> Contest:
    task = ListOps(length=128, max_depth=5, max_arguments=5)
    training = budget_of(steps=200, batch=16, examples=1024)
    return _contest(task, training, rates=SMALL_RATES, tuning_seeds=1)


def _full_listops() -> Contest:
    task = ListOps(length=2000, max_depth=10, max_arguments=10)
    return _full(task, budget_of(steps=5000, batch=32, examples=2048))


def _small_matching() -> Contest:
    task = Matching(length=256, corpora=("speeches", "manuals"))
    training = budget_of(steps=300, batch=16, examples=512)
    return _contest(task, training, rates=SMALL_RATES, tuning_seeds=1)


def _full_matching() -> Contest:
    task = Matching(length=4000, corpora=("speeches", "manuals", "kernel", "python", "postgres"))
    return _full(task, budget_of(steps=5000, batch=32, examples=2048))


def _small_text() -> Contest:
    return _contest(
        MailBytes(length=256),
        budget_of(steps=200, batch=8, examples=512),
        rates=SMALL_RATES,
        tuning_seeds=1,
    )


def _full_text() -> Contest:
    return _full(MailBytes(length=4000), budget_of(steps=5000, batch=32, examples=1000))


def _small_pixels() -> Contest:
    task = Pixels(shrink=2, levels=16)
    training = budget_of(steps=200, batch=16, examples=1024)
    return _contest(task, training, rates=SMALL_RATES, tuning_seeds=1)


def _full_pixels() -> Contest:
    task = Pixels(shrink=1, levels=256)
    return _full(task, budget_of(steps=20_000, batch=32, examples=10_000))


def _small_pathfinder() -> Contest:
    task = Pathfinder(side=16, path=12, distractors=1, marks_apart=(5, 10), pictures=2000)
    training = budget_of(steps=200, batch=16, examples=1024)
    return _contest(task, training, rates=SMALL_RATES, tuning_seeds=1)


def _full_pathfinder() -> Contest:
    task = Pathfinder(side=32, path=24, distractors=4, marks_apart=(8, 20), pictures=50_000)
    return _full(task, budget_of(steps=50_000, batch=32, examples=10_000))


def _vision(training: TrainingBudget, rates: tuple[float, ...], tuning_seeds: int) -> TokenContest:
    task = Patches(side=4)
    return _contest(
        *(task, training), rates=rates, tuning_seeds=tuning_seeds, layers=4, block_size=16
    )


def _small_vision() -> TokenContest:
    return _vision(budget_of(steps=200, batch=16, examples=1024), SMALL_RATES, 1)


def _full_vision() -> TokenContest:
    return _vision(budget_of(steps=20_000, batch=64, examples=10_000), (3e-4, *SMALL_RATES), 2)


def _moments(base: TokenContest) -> Contest:
    return MomentContest(base=base, watched=11)


TASK_EXPERIMENTS = (
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
        "text",
        "attention kinds: whether a mail is spam, read byte by byte",
        {"small": _small_text, "full": _full_text},
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
        "moments",
        "LLN in that vision transformer: alpha and beta matched to softmax's moments, or fixed",
        {"small": lambda: _moments(_small_vision()), "full": lambda: _moments(_full_vision())},
    ),
)
