"""`lln experiment`: attention kinds and optimisers against each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.cli.common import (
    Chosen,
    Commands,
    add_command,
    add_json,
    names,
    path_of,
    positive_number,
    print_json,
    print_table,
    tell,
)

if TYPE_CHECKING:
    from engine.experiments.trials import Measured, Trial


def add_experiment(commands: Commands) -> None:
    about = "train attention kinds or optimisers against each other, with equal tuning and seeds"
    command = add_command(commands, "experiment", _experiment, about)
    command.add_argument("name", nargs="?", help="an experiment listed by --list")
    command.add_argument("--list", action="store_true", help="list the experiments")
    command.add_argument(
        "--seeds",
        type=positive_number,
        default=5,
        metavar="N",
        help="seeds of the test (default: 5)",
    )
    command.add_argument("--budget", default="small", help="small or full (default: small)")
    command.add_argument(
        "--methods",
        type=names,
        metavar="NAME,NAME,...",
        help="the attention kinds or optimisers that take part (default: all); the reference, "
        "listed first by --list, always does",
    )
    command.add_argument(
        "--out",
        type=path_of,
        metavar="FOLDER",
        help="folder for settings, trials and result (default: experiments/NAME-BUDGET); an "
        "interrupted experiment continues there, and methods can be added to a finished one",
    )
    command.add_argument(
        "--threads", type=positive_number, default=1, metavar="N", help="torch threads (default: 1)"
    )
    add_json(command)


def _experiment(chosen: Chosen) -> None:
    from engine.errors import InvalidInput

    if chosen.list:
        _list(chosen)
        return
    if chosen.name is None:
        raise InvalidInput(
            "name an experiment, or use --list", code="missing_name", param="experiment"
        )
    _run(chosen)


def _list(chosen: Chosen) -> None:
    from engine.experiments.catalogue import EXPERIMENTS

    rows = []
    for experiment in EXPERIMENTS.values():
        methods = next(iter(experiment.contests.values()))().methods
        rows.append({"name": experiment.name, "about": experiment.about, "methods": methods})
    if chosen.json:
        print_json(rows)
        return
    for row in rows:
        print(f"{row['name']}: {row['about']}\n    {', '.join(row['methods'])}")


def _run(chosen: Chosen) -> None:
    import torch

    from engine.experiments.catalogue import plan_experiment
    from engine.experiments.contest import run_contest

    plan = plan_experiment(
        chosen.name,
        budget=chosen.budget,
        methods=chosen.methods,
        seeds=chosen.seeds,
        threads=chosen.threads,
    )
    torch.set_num_threads(chosen.threads)
    folder: Path = chosen.out or Path("experiments") / f"{chosen.name}-{chosen.budget}"
    found = run_contest(plan, folder, _machine(), _show)
    if chosen.json:
        print_json(found)
    else:
        _print_result(found)
        tell(f"written to {folder}")


def _show(done: int, total: int, trial: Trial, measured: Measured) -> None:
    from engine.experiments.contest import SCORE

    tell(
        f"{done} of {total}: {trial.part}, {trial.method}, rate {trial.rate:g}, "
        f"seed {trial.seed}: {measured.figures[SCORE]:.4g} in {measured.seconds:.1f} CPU seconds"
    )


def _print_result(found: Mapping[str, Any]) -> None:
    rows = [("METHOD", "RATE", "FIGURE", "MEAN", "95 % INTERVAL", f"MINUS {found['reference']}")]
    for method, one in found["methods"].items():
        for figure, value in one["figures"].items():
            minus = one["minus_reference"].get(figure)
            rows.append(
                (
                    *(method, f"{one['rate']:g}", figure, f"{value['mean']:.4g}"),
                    f"{value['low']:.4g} to {value['high']:.4g}",
                    f"{minus['low']:+.4g} to {minus['high']:+.4g}" if minus else "",
                )
            )
    print_table(rows)


def _machine() -> dict[str, str]:
    """What seconds and, in their last digits, figures depend on."""
    import torch

    from service.benchmarks.job import cpu_name, describe_build

    instructions = torch.backends.cpu.get_cpu_capability()
    return {"device": cpu_name(), "cpu_capability": instructions, **describe_build()}
