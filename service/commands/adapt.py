"""`lln adapt`: a softmax checkpoint as LLN+Diag, calibrated in minutes or trained on documents."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from engine.errors import InvalidInput
from engine.types import PositionScheme, Precision
from service.commands.base import (
    Chosen,
    Commands,
    add_command,
    add_json,
    print_json,
    tell,
)
from service.settings import load_settings

if TYPE_CHECKING:
    from engine.adapt.calibrate import CalibrationPlan
    from engine.adapt.documents import Document
    from engine.adapt.stages import TrainingPlan
    from engine.adapt.training import StepReport


_CALIBRATES = {"block_size": "block_size", "positions": "positions", "samples": "num_samples"}
"""Options that say how to calibrate, and what the plan calls them; left out, its own stand."""


def add(commands: Commands) -> None:
    about = "make an LLN+Diag model of a softmax checkpoint"
    command = add_command(commands, "adapt", _adapt, about)
    command.add_argument("model", help="a folder, or a name of `lln models`")
    command.add_argument("--out", type=Path, required=True, help="the new model's folder")
    command.add_argument(
        "--text",
        action="append",
        default=[],
        type=Path,
        help="a file or folder of text like yours (default: Python's own reference manual)",
    )
    command.add_argument(
        "--block-size",
        type=int,
        metavar="TOKENS",
        help="of one softmax block, a multiple of 16 (default: 256)",
    )
    command.add_argument(
        "--positions",
        choices=get_args(PositionScheme),
        help="learned positions beyond their table: start it anew, stretch it, or start it anew "
        "in each block (default: tile)",
    )
    command.add_argument("--samples", type=int, help="windows of text to measure on (default: 32)")
    _add_training(command.add_argument_group("training, which calibration alone does without"))
    add_json(command)


def _add_training(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--train",
        action="append",
        default=[],
        metavar="DATA",
        help="a folder of text, a JSONL or Parquet file, or the name of a packaged corpus; "
        "repeatable. A fifth of the documents is held out",
    )
    group.add_argument(
        "--recipe",
        default="lln",
        help="lln (LLN's own numbers alone, so that a text of one block stays what it was), "
        "encoder (the whole encoder with them), documents (the same from a model that has learned "
        "already, with --further), imitate (long stages, for a GPU), or a JSON file with a list of "
        "stages",
    )
    group.add_argument("--seed", type=int, default=0, help="of all that is drawn (default: 0)")
    group.add_argument(
        "--precision",
        choices=get_args(Precision),
        default="float32",
        help="of the model's products; what is learned stays float32",
    )
    group.add_argument(
        "--strength",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="how far to go from the calibrated numbers to the trained ones, above 0 and at most "
        "1 (default: 1); less finds less and stays nearer to the teacher",
    )
    group.add_argument(
        "--further",
        action="store_true",
        help="begin from what an adapted model has learned already, and calibrate nothing",
    )
    group.add_argument("--control", action="store_true", help="train without LLN, to compare with")


def _adapt(chosen: Chosen) -> None:
    from engine.adapt.calibrate import CalibrationPlan

    _check(chosen)
    wanted = {field: getattr(chosen, option) for option, field in _CALIBRATES.items()}
    plan = CalibrationPlan(**{field: value for field, value in wanted.items() if value is not None})
    if chosen.train:
        _train(chosen, plan)
    else:
        _calibrate(chosen, plan)


def _check(chosen: Chosen) -> None:
    """Before a model is read and minutes are spent."""
    from kernels.attention.arguments import ArgumentError, check_block_size

    if chosen.further:
        _check_further(chosen)
    try:
        if chosen.block_size is not None:
            check_block_size(chosen.block_size)
    except ArgumentError as error:
        raise InvalidInput(str(error), param="block_size", actual=chosen.block_size) from None
    if not 0 < chosen.strength <= 1:
        raise InvalidInput(
            f"strength must be above 0 and at most 1, got {chosen.strength:g}",
            param="strength",
            limit=1,
            actual=chosen.strength,
        )
    if chosen.samples is not None and chosen.samples < 1:
        raise InvalidInput(
            f"samples must be at least 1, got {chosen.samples}",
            param="samples",
            limit=1,
            actual=chosen.samples,
        )


def _check_further(chosen: Chosen) -> None:
    """Training goes on with the model as it is: what calibration would choose is chosen."""
    given = [option for option in _CALIBRATES if getattr(chosen, option) is not None]
    if given:
        raise InvalidInput(
            f"--further goes on from the model's own {given[0]}, and takes no other",
            param=given[0],
            actual=getattr(chosen, given[0]),
        )
    if not chosen.train:
        raise InvalidInput("--further needs data: --train DATA", param="train")


def _calibrate(chosen: Chosen, plan: CalibrationPlan) -> None:
    from engine.adapt.convert import adapt_model, built_in_texts, read_texts

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


def _train(chosen: Chosen, calibration: CalibrationPlan) -> None:
    from engine.adapt.distil import DistilPlan, distil_model
    from engine.adapt.student import StudentPlan

    def show(report: StepReport, total: int) -> None:
        tell(
            f"\r{report.stage} {report.step + 1}/{total}, {report.length} tokens: "
            f"loss {report.loss:.4f}, {report.tokens / report.seconds:,.0f} tokens/s   ",
            end="\n" if report.step + 1 == total else "",
        )

    made = distil_model(
        chosen.model,
        chosen.out,
        _documents(chosen.train),
        DistilPlan(
            calibration=calibration,
            student=StudentPlan(without_lln=chosen.control),
            training=_training_plan(chosen),
            further=chosen.further,
            strength=chosen.strength,
        ),
        config=load_settings().engine,
        progress=show,
    )
    if chosen.json:
        print_json({"folder": str(made)})
    else:
        print(f"{made}: `lln evaluate {made} --teacher {chosen.model}` tells how good it is")


def _documents(sources: Sequence[str]) -> Mapping[str, Sequence[Document]]:
    """By the name of where they come from: a packaged corpus, or else a path."""
    from engine.adapt.corpora import SOURCES, load_corpus
    from engine.adapt.documents import read_documents

    return {
        source: load_corpus(source).documents if source in SOURCES else read_documents(Path(source))
        for source in sources
    }


def _training_plan(chosen: Chosen) -> TrainingPlan:
    from engine.adapt.stages import TrainingPlan, recipe, stages_from

    path = Path(chosen.recipe)
    is_file = path.suffix == ".json"
    stages = stages_from(json.loads(path.read_text("utf-8"))) if is_file else recipe(chosen.recipe)
    return TrainingPlan(stages=stages, seed=chosen.seed, precision=chosen.precision)
