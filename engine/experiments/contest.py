"""A fair contest: every method gets the same rates to choose from and is judged on other seeds.

Tuning: each method runs at every rate from the tuning seeds, and keeps the rate with the best mean
score. Test: it runs at that rate from seeds of its own. All of them count, none is picked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol, TypeAlias

from engine.config import MAX_THREADS
from engine.errors import InvalidInput, unknown_name
from engine.experiments.document_intervals import minus_by_document
from engine.experiments.intervals import MAX_SEEDS, SeedInterval, over_seeds, paired
from engine.experiments.trials import (
    RESULT_FILE,
    Findings,
    Measured,
    Trial,
    TrialStore,
    open_store,
)

SCORE = "score"
"""The figure by which a rate is chosen: higher is better."""


class Contest(Protocol):
    """What a contest is about. `methods` are compared with the first of them, the reference."""

    @property
    def name(self) -> str: ...

    @property
    def methods(self) -> tuple[str, ...]: ...

    @property
    def rates(self) -> tuple[float, ...]: ...

    @property
    def tuning_seeds(self) -> int: ...

    def settings(self) -> Mapping[str, Any]: ...

    def check(self) -> None:
        """Raises a typed error if a trial cannot run here, before any does."""
        ...

    def measure(self, trial: Trial) -> Mapping[str, float] | Findings:
        """The figures of one trial, the same whenever it runs. `SCORE` is among them."""
        ...


@dataclass(frozen=True, kw_only=True)
class ContestPlan:
    contest: Contest
    methods: tuple[str, ...]
    seeds: int
    threads: int

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in self.contest.methods:
                raise unknown_name("method", name, self.contest.methods, param="methods")
        if len(set(self.methods)) < len(self.methods):
            raise InvalidInput(
                f"a method is named twice: {', '.join(self.methods)}",
                code="named_twice",
                param="methods",
            )
        if not 2 <= self.seeds <= MAX_SEEDS:
            raise InvalidInput(
                f"seeds must be from 2 to {MAX_SEEDS}, got {self.seeds}",
                code="seeds_out_of_range",
                param="seeds",
                limit=MAX_SEEDS,
                actual=self.seeds,
            )
        if not 1 <= self.threads <= MAX_THREADS:
            raise InvalidInput(
                f"threads must be from 1 to {MAX_THREADS}, got {self.threads}",
                code="threads_out_of_range",
                param="threads",
                limit=MAX_THREADS,
                actual=self.threads,
            )

    def settings(self) -> dict[str, Any]:
        return {
            "experiment": self.contest.name,
            "methods": list(self.methods),
            "rates": list(self.contest.rates),
            "tuning_seeds": list(range(self.contest.tuning_seeds)),
            "seeds": list(self.test_seeds),
            "threads": self.threads,
            **self.contest.settings(),
        }

    @property
    def test_seeds(self) -> range:
        first = self.contest.tuning_seeds
        return range(first, first + self.seeds)

    def tuning_trials(self) -> Iterator[Trial]:
        for seed in range(self.contest.tuning_seeds):
            for rate in self.contest.rates:
                for method in self.methods:
                    yield Trial(method=method, rate=rate, seed=seed, part="tuning")

    def test_trials(self, chosen: Mapping[str, float]) -> Iterator[Trial]:
        for seed in self.test_seeds:
            for method in self.methods:
                yield Trial(method=method, rate=chosen[method], seed=seed, part="test")

    @property
    def num_trials(self) -> int:
        contest = self.contest
        return len(self.methods) * (len(contest.rates) * contest.tuning_seeds + self.seeds)


Progress: TypeAlias = Callable[[int, int, Trial, Measured], None]
"""Called with how many trials are done, of how many, and the last one."""


@dataclass
class ContestRun:
    """Runs the trials that a store does not have yet."""

    plan: ContestPlan
    store: TrialStore
    progress: Progress
    done: int = field(default=0, init=False)

    def tune(self) -> dict[str, float]:
        """The rate that each method keeps; of equally good ones the first, which is also that of a
        contest that does not tune."""
        if not self.plan.contest.tuning_seeds:
            return dict.fromkeys(self.plan.methods, self.plan.contest.rates[0])
        measured = {trial: self._measure(trial) for trial in self.plan.tuning_trials()}
        chosen: dict[str, float] = {}
        for method in self.plan.methods:
            scores = sweep_of(measured, method)
            chosen[method] = max(scores, key=lambda rate: _or_worst(scores[rate]))
        return chosen

    def test(self, chosen: Mapping[str, float]) -> dict[str, list[Measured]]:
        found: dict[str, list[Measured]] = {method: [] for method in self.plan.methods}
        for trial in self.plan.test_trials(chosen):
            found[trial.method].append(self._measure(trial))
        return found

    def _measure(self, trial: Trial) -> Measured:
        measured = self.store.measured.get(trial)
        is_new = measured is None
        if measured is None:
            began = time.thread_time()
            found = self.plan.contest.measure(trial)
            if not isinstance(found, Findings):
                found = Findings(dict(found), {})
            measured = Measured(**found._asdict(), seconds=time.thread_time() - began)
            self.store.add(trial, measured)
        self.done += 1
        if is_new:
            self.progress(self.done, self.plan.num_trials, trial, measured)
        return measured


def sweep_of(measured: Mapping[Trial, Measured], method: str) -> dict[float, float]:
    """The mean score of each rate over the tuning seeds, by which the rate is chosen."""
    scores: dict[float, list[float]] = {}
    for trial, one in measured.items():
        if (trial.method, trial.part) == (method, "tuning"):
            scores.setdefault(trial.rate, []).append(one.figures[SCORE])
    return {rate: fmean(found) for rate, found in scores.items()}


def _or_worst(score: float) -> float:
    """A trial that diverged has no number for a score, and is worse than all that have one."""
    return -math.inf if math.isnan(score) else score


def run_contest(
    plan: ContestPlan, folder: Path, machine: Mapping[str, Any], progress: Progress
) -> dict[str, Any]:
    """Runs or finishes a contest in this folder and returns its result.

    The result depends on the settings alone; seconds and machines are beside it.
    """
    plan.contest.check()
    with open_store(folder, plan.settings(), machine) as store:
        run = ContestRun(plan, store, progress)
        chosen = run.tune()
        found = run.test(chosen)
        result = {
            "settings": plan.settings(),
            "reference": plan.methods[0],
            "methods": {
                method: _judged(plan, store, method, chosen[method], found)
                for method in plan.methods
            },
        }
        store.write(RESULT_FILE, result)
    return result


def _judged(
    plan: ContestPlan,
    store: TrialStore,
    method: str,
    rate: float,
    found: Mapping[str, Sequence[Measured]],
) -> dict[str, Any]:
    reference = found[plan.methods[0]]
    own = found[method]
    return {
        "rate": rate,
        "is_edge_of_sweep": bool(plan.contest.tuning_seeds)
        and rate in (plan.contest.rates[0], plan.contest.rates[-1]),
        "sweep": {
            str(rate): None if math.isnan(score) else score
            for rate, score in sweep_of(store.measured, method).items()
        },
        "figures": {name: _interval(over_seeds(_values(own, name))) for name in own[0].figures},
        "minus_reference": {
            name: _interval(paired(_values(own, name), _values(reference, name)))
            for name in own[0].figures
            if name in reference[0].figures
        },
        "by_seed": [dict(one.figures) for one in own],
        **_by_document(own, reference),
    }


def _by_document(own: Sequence[Measured], reference: Sequence[Measured]) -> dict[str, Any]:
    """The differences again, with intervals by documents, where trials know theirs."""
    minus = minus_by_document(*([one.by_document for one in all_] for all_ in (own, reference)))
    return {"minus_reference_by_document": minus} if minus else {}


def _values(measured: Sequence[Measured], name: str) -> list[float]:
    return [one.figures[name] for one in measured]


def _interval(found: SeedInterval) -> dict[str, float]:
    return asdict(found)
