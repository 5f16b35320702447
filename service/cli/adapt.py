"""`lln adapt`: make an LLN+Diag model of a softmax checkpoint, by calibration or by training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import InvalidInput
from service.cli.adapt_options import (
    CALIBRATION_OPTIONS,
    SETTINGS,
    add_calibration_options,
    add_training_options,
    check_options,
    check_plan,
)
from service.cli.common import Chosen, Commands, add_command, add_json, path_of, print_json, tell
from service.environment import load_settings

if TYPE_CHECKING:
    from engine.training.calibrate import CalibrationPlan
    from engine.training.data import Document
    from engine.training.recipe import Stage, TrainingPlan
    from engine.training.trainer import StepReport


def add_adapt(commands: Commands) -> None:
    about = "make an LLN+Diag model of a softmax checkpoint"
    command = add_command(commands, "adapt", _adapt, about)
    command.add_argument("model", help="a folder, or a name that `lln models` lists")
    command.add_argument("--out", type=path_of, required=True, help="the new model's folder")
    add_calibration_options(command)
    add_training_options(command)
    add_json(command)


def _adapt(chosen: Chosen) -> None:
    from engine.training.calibrate import CalibrationPlan

    check_options(chosen)
    plan = CalibrationPlan(**_given(chosen, CALIBRATION_OPTIONS))
    check_plan(plan)
    if not chosen.further:
        _tell_if_adapted(chosen.model)
    if chosen.train:
        _train(chosen, plan)
    elif chosen.further:
        _change_settings(chosen)
    else:
        _calibrate(chosen, plan)


def _tell_if_adapted(model: str) -> None:
    from engine.checkpoint.calibration import has_own_calibration

    if has_own_calibration(Path(model)):
        tell(f"{model} is already adapted; its LLN will be calibrated anew (--further keeps it)")


def _given(chosen: Chosen, fields: Mapping[str, str]) -> dict[str, Any]:
    """The options that were given, by a plan's names. The plan has defaults for the others."""
    values = {field: getattr(chosen, option) for option, field in fields.items()}
    return {field: value for field, value in values.items() if value is not None}


def _calibrate(chosen: Chosen, plan: CalibrationPlan) -> None:
    from engine.training.convert import adapt_model, built_in_texts, read_texts

    def show(done: int, total: int) -> None:
        tell(f"\rcalibrating layer {done} of {total}", end="\n" if done == total else "")

    made = adapt_model(
        chosen.model,
        chosen.out,
        read_texts(chosen.text) if chosen.text else built_in_texts(),
        plan,
        config=load_settings().engine,
        progress=show,
    )
    if chosen.json:
        print_json(asdict(made) | {"folder": str(made.folder)})
        return
    print(
        f"{made.folder}: cosine to the teacher on other text, windows of {made.tokens} tokens: "
        f"mean {made.mean_cosine:.4f}, least {made.least_cosine:.4f}"
    )


def _change_settings(chosen: Chosen) -> None:
    from engine.training.convert import with_settings

    config = load_settings().engine
    changed = {name: CALIBRATION_OPTIONS[name] for name in SETTINGS}
    made = with_settings(chosen.model, chosen.out, **_given(chosen, changed), config=config)
    if chosen.json:
        print_json({"folder": str(made)})
        return
    values = {name: getattr(chosen, name) for name in SETTINGS}
    given = [f"--{name.replace('_', '-')} {one}" for name, one in values.items() if one is not None]
    print(f"{made}: {chosen.model} with {' '.join(given)}")


def _train(chosen: Chosen, calibration: CalibrationPlan) -> None:
    from engine.training.distill import DistillPlan, distill_model
    from engine.training.student import StudentPlan

    def show(report: StepReport, total: int) -> None:
        tell(
            f"\r{report.stage} {report.step + 1}/{total}, {report.length} tokens: "
            f"loss {report.loss:.4f}, {report.tokens / report.seconds:,.0f} tokens/s   ",
            end="\n" if report.step + 1 == total else "",
        )

    plan = DistillPlan(
        calibration=calibration,
        student=StudentPlan(without_lln=chosen.control),
        training=_training_plan(chosen),
        continue_training=chosen.further,
        **_given(chosen, {"strength": "strength"}),
    )
    made = distill_model(
        chosen.model,
        chosen.out,
        read_training_data(chosen.train),
        plan,
        config=load_settings().engine,
        progress=show,
    )
    if chosen.json:
        print_json({"folder": str(made)})
    else:
        print(f"{made}: `lln evaluate {made} --teacher {chosen.model}` measures how good it is")


def read_training_data(sources: Sequence[str]) -> Mapping[str, Sequence[Document]]:
    """Documents by the name of their source, which is a packaged corpus or a path."""
    from engine.evaluation.corpora import SOURCES, load_corpus
    from engine.training.data import read_documents

    return {
        source: load_corpus(source).documents if source in SOURCES else read_documents(Path(source))
        for source in sources
    }


def _training_plan(chosen: Chosen) -> TrainingPlan:
    from engine.training.recipe import TrainingPlan

    given = _given(chosen, {"seed": "seed", "precision": "precision"})
    if chosen.recipe is not None:
        given["stages"] = _stages(chosen.recipe)
    plan = TrainingPlan(**given)
    if chosen.control and not plan.trains("encoder"):
        raise InvalidInput(
            "--control trains without LLN, but this recipe trains LLN only", param="control"
        )
    return plan


def _stages(name: str) -> tuple[Stage, ...]:
    from engine.checkpoint.json_files import read_json
    from engine.training.recipe import load_recipe, parse_stages

    path = Path(name)
    return parse_stages(read_json(path)) if path.suffix == ".json" else load_recipe(name)
