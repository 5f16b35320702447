"""`lln adapt`: a softmax checkpoint as LLN+Diag, calibrated in minutes or trained on documents."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from engine.block_size import LongBlock
from engine.errors import InvalidInput
from engine.types import PositionScheme, Precision
from service.commands.adapt_checks import CALIBRATES, check_options, check_plan
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
    from engine.adapt.stages import Stage, TrainingPlan
    from engine.adapt.training import StepReport


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
        "--long-block",
        type=_long_block,
        metavar="TOKENS:SIZE",
        help="texts of more than so many tokens have blocks of this size, which costs them less "
        "(default: those of all others)",
    )
    command.add_argument(
        "--positions",
        choices=get_args(PositionScheme),
        help="learned positions beyond their table: start it anew, stretch it, or start it anew "
        "in each block (default: tile)",
    )
    command.add_argument(
        "--rise",
        type=float,
        metavar="SHARE",
        help="how much more the last token of a long text counts in its vector than the average "
        "one, and the first less, 0 to 1: evens out that what stands at the beginning is found "
        "better (default: 0; for models that pool by the mean)",
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
        help="lln (the default: LLN's own numbers alone, so that a text of one block stays what "
        "it was), encoder (the whole encoder with them), documents (the same from a model that has "
        "learned already, with --further), imitate (long stages, for a GPU; not for a model that "
        "pools by its first token, of which a text beyond its window has several), or a JSON file "
        "with a list of stages",
    )
    group.add_argument("--seed", type=int, help="of all that is drawn (default: 0)")
    group.add_argument(
        "--precision",
        choices=get_args(Precision),
        help="of the model's products; what is learned stays float32 (default: float32)",
    )
    group.add_argument(
        "--strength",
        type=float,
        metavar="SHARE",
        help="how far to go from the calibrated numbers to the trained ones, above 0 and at most "
        "1 (default: 1); less finds less and stays nearer to the teacher",
    )
    group.add_argument(
        "--further",
        action="store_true",
        help="begin from what an adapted model has learned already, and calibrate nothing; with "
        "--rise and without --train, change nothing but that",
    )
    group.add_argument("--control", action="store_true", help="train without LLN, to compare with")


def _long_block(written: str) -> LongBlock:
    beyond, _, size = written.partition(":")
    if not (beyond.isdecimal() and size.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected TOKENS:SIZE, as 4096:256, got {written!r}")
    return LongBlock(int(beyond), int(size))


def _adapt(chosen: Chosen) -> None:
    from engine.adapt.calibrate import CalibrationPlan

    check_options(chosen)
    plan = CalibrationPlan(**_given(chosen, CALIBRATES))
    check_plan(plan)
    if chosen.train:
        _train(chosen, plan)
    elif chosen.further:
        _change_rise(chosen, plan.rise)
    else:
        _calibrate(chosen, plan)


def _given(chosen: Chosen, fields: Mapping[str, str]) -> dict[str, Any]:
    """What was chosen, by a plan's own names; of what was left out the plan's own values stand."""
    values = {field: getattr(chosen, option) for option, field in fields.items()}
    return {field: value for field, value in values.items() if value is not None}


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


def _change_rise(chosen: Chosen, rise: float) -> None:
    from engine.adapt.convert import with_rise

    made = with_rise(chosen.model, chosen.out, rise, config=load_settings().engine)
    if chosen.json:
        print_json({"folder": str(made)})
    else:
        print(f"{made}: {chosen.model} with a rise of {rise:g}")


def _train(chosen: Chosen, calibration: CalibrationPlan) -> None:
    from engine.adapt.distil import DistilPlan, distil_model
    from engine.adapt.student import StudentPlan

    def show(report: StepReport, total: int) -> None:
        tell(
            f"\r{report.stage} {report.step + 1}/{total}, {report.length} tokens: "
            f"loss {report.loss:.4f}, {report.tokens / report.seconds:,.0f} tokens/s   ",
            end="\n" if report.step + 1 == total else "",
        )

    plan = DistilPlan(
        calibration=calibration,
        student=StudentPlan(without_lln=chosen.control),
        training=_training_plan(chosen),
        further=chosen.further,
        **_given(chosen, {"strength": "strength"}),
    )
    made = distil_model(
        chosen.model,
        chosen.out,
        _documents(chosen.train),
        plan,
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
    from engine.adapt.stages import TrainingPlan

    given = _given(chosen, {"seed": "seed", "precision": "precision"})
    if chosen.recipe is not None:
        given["stages"] = _stages(chosen.recipe)
    plan = TrainingPlan(**given)
    if chosen.control and not plan.trains("encoder"):
        raise InvalidInput(
            "--control trains without LLN, and this recipe trains nothing else", param="control"
        )
    return plan


def _stages(name: str) -> tuple[Stage, ...]:
    from engine.adapt.stages import recipe, stages_from
    from engine.checkpoint.json_file import read_json

    path = Path(name)
    return stages_from(read_json(path)) if path.suffix == ".json" else recipe(name)
