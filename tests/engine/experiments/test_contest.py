"""A contest tunes all methods alike, goes on after a kill, and refuses what does not belong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.errors import CheckpointError, InvalidInput
from engine.experiments.catalogue import EXPERIMENTS, plan_experiment
from engine.experiments.contest import ContestPlan, run_contest
from engine.experiments.intervals import over_seeds, paired
from engine.experiments.trials import (
    LOCK_FILE,
    MACHINES_FILE,
    RESULT_FILE,
    SETTINGS_FILE,
    TRIALS_FILE,
    Measured,
    Trial,
    as_json,
)
from engine.platform.locks import AlreadyRunning, writers_lock


@dataclass
class Arithmetic:
    """Scores that are known: each method is best at a rate of its own."""

    name: str = "arithmetic"
    methods: tuple[str, ...] = ("plain", "better", "late")
    rates: tuple[float, ...] = (1.0, 2.0, 3.0)
    tuning_seeds: int = 2
    stop_after: int | None = None
    ran: list[Trial] = field(default_factory=list)

    def settings(self) -> Mapping[str, Any]:
        return {"offset": 0.5}

    def check(self) -> None:
        pass

    def measure(self, trial: Trial) -> Mapping[str, float]:
        if len(self.ran) == self.stop_after:
            raise KeyboardInterrupt
        self.ran.append(trial)
        best, bonus = {"plain": (2.0, 0.0), "better": (1.0, 10.0), "late": (3.0, 0.5)}[trial.method]
        return {"score": bonus - abs(trial.rate - best) + 0.1 * trial.seed}


def plan(contest: Arithmetic, *methods: str, seeds: int = 3) -> ContestPlan:
    return ContestPlan(contest=contest, methods=methods or contest.methods, seeds=seeds, threads=1)


def run(contest: Arithmetic, folder: Path, *methods: str, seeds: int = 3) -> dict[str, Any]:
    return run_contest(plan(contest, *methods, seeds=seeds), folder, {"device": "here"}, _ignore)


def _ignore(done: int, total: int, trial: Trial, measured: Measured) -> None:
    assert 0 < done <= total


def test_each_method_keeps_its_best_rate_and_is_judged_on_seeds_of_its_own(tmp_path: Path) -> None:
    contest = Arithmetic()
    found = run(contest, tmp_path)
    assert {name: one["rate"] for name, one in found["methods"].items()} == {
        "plain": 2.0,
        "better": 1.0,
        "late": 3.0,
    }
    assert {trial.seed for trial in contest.ran if trial.part == "test"} == {2, 3, 4}
    assert {trial.seed for trial in contest.ran if trial.part == "tuning"} == {0, 1}
    gain = found["methods"]["better"]["minus_reference"]["score"]
    assert gain["mean"] == pytest.approx(10)
    assert gain["high"] - gain["low"] == pytest.approx(0, abs=1e-9)  # paired by seed
    assert [one["is_edge_of_sweep"] for one in found["methods"].values()] == [False, True, True]


def test_a_run_that_was_killed_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(Arithmetic(), whole)
    with pytest.raises(KeyboardInterrupt):
        run(Arithmetic(stop_after=11), parts)
    with (parts / TRIALS_FILE).open("a") as file:
        file.write('{"method": "plain", "ra')  # half a line
    last = Arithmetic()
    run(last, parts)
    assert len(last.ran) == 3 * (3 * 2 + 3) - 11
    assert (parts / RESULT_FILE).read_bytes() == (whole / RESULT_FILE).read_bytes()
    assert len((parts / MACHINES_FILE).read_text().splitlines()) == 2


def test_the_sweep_is_what_rates_were_chosen_by(tmp_path: Path) -> None:
    found = run(Arithmetic(), tmp_path)["methods"]["plain"]
    assert found["sweep"] == pytest.approx({"1.0": -0.95, "2.0": 0.05, "3.0": -0.95})


@dataclass
class Diverging(Arithmetic):
    """Its first rate leads nowhere."""

    def measure(self, trial: Trial) -> Mapping[str, float]:
        found = super().measure(trial)
        return {"score": math.nan} if trial.rate == self.rates[0] else found


def test_a_rate_that_diverged_is_not_kept(tmp_path: Path) -> None:
    found = run(Diverging(), tmp_path)["methods"]
    assert [one["rate"] for one in found.values()] == [2.0, 2.0, 3.0]
    assert found["plain"]["sweep"]["1.0"] is None  # JSON has no other word for it


def test_methods_can_be_added_but_not_left_out(tmp_path: Path) -> None:
    run(Arithmetic(), tmp_path, "plain", "late")
    more = Arithmetic()
    run(more, tmp_path)
    assert {trial.method for trial in more.ran} == {"better"}
    with pytest.raises(InvalidInput, match="methods was"):
        run(Arithmetic(), tmp_path, "plain", "late")


def test_other_settings_are_refused_and_nothing_is_overwritten(tmp_path: Path) -> None:
    run(Arithmetic(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InvalidInput, match=r"seeds was \[2, 3, 4\] and is") as caught:
        run(Arithmetic(), tmp_path, seeds=4)
    assert caught.value.code == "other_settings"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidInput) as caught:
        run(Arithmetic(), tmp_path)
    assert caught.value.code == "folder_not_empty"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_full_disk_and_damaged_settings_are_named(tmp_path: Path) -> None:
    (tmp_path / SETTINGS_FILE).write_text(as_json(plan(Arithmetic()).settings()))
    machines = tmp_path / MACHINES_FILE
    machines.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        run(Arithmetic(), tmp_path)
    assert caught.value.filename == str(machines)
    machines.unlink()
    (tmp_path / SETTINGS_FILE).write_text("{")
    with pytest.raises(CheckpointError, match=r"settings\.json is not valid"):
        run(Arithmetic(), tmp_path)


def test_one_run_at_a_time_in_a_folder(tmp_path: Path) -> None:
    with writers_lock(tmp_path / LOCK_FILE, str(tmp_path)), pytest.raises(AlreadyRunning):
        run(Arithmetic(), tmp_path)
    run(Arithmetic(), tmp_path)  # what was killed before it wrote anything goes on
    assert (tmp_path / RESULT_FILE).is_file()


@pytest.mark.parametrize(
    ("name", "budget", "methods", "seeds", "told"),
    [
        ("recal", "small", None, 5, "unknown experiment 'recal'; choose one of recall"),
        ("recall", "large", None, 5, "unknown budget 'large'; choose one of small, full"),
        ("recall", "small", ["flash"], 5, "unknown method 'flash'; choose one of block_diagonal"),
        ("recall", "small", None, 1, "seeds must be from 2 to 21, got 1"),
        ("recall", "small", None, 22, "seeds must be from 2 to 21, got 22"),
    ],
)
def test_bad_plans(
    name: str, budget: str, methods: list[str] | None, seeds: int, told: str
) -> None:
    with pytest.raises(InvalidInput, match=told):
        plan_experiment(name, budget=budget, methods=methods, seeds=seeds, threads=1)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_reference_always_takes_part(name: str) -> None:
    experiment = EXPERIMENTS[name]
    for budget in experiment.contests:
        all_of_it = plan_experiment(name, budget=budget, methods=None, seeds=5, threads=1)
        first, *_, last = all_of_it.methods
        part = plan_experiment(name, budget=budget, methods=[last], seeds=5, threads=1)
        assert part.methods == (first, last)


def test_intervals() -> None:
    found = over_seeds([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.low == pytest.approx(2 - 4.303 / 3**0.5)
    assert paired([3.0, 5.0], [1.0, 3.0]).low == 2.0
