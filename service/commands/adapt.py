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


_CALIBRATES = {
    "block_size": "block_size",
    "long_block": "long_block",
    "rise": "rise",
    "positions": "positions",
    "samples": "num_samples",
}
"""Options that say how to calibrate, and what the plan calls them."""

_TRAINS = ("recipe", "seed", "precision", "strength", "further", "control")
"""Options that nothing but training heeds."""

_LEAST = {"samples": 1, "seed": 0}


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

    _check(chosen)
    plan = CalibrationPlan(**_given(chosen, _CALIBRATES))
    _check_blocks(plan)
    _check_rise(plan)
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


def _check(chosen: Chosen) -> None:
    """Before a model is read and minutes are spent."""
    _check_numbers(chosen)
    if chosen.further:
        _check_further(chosen)
    _check_heeded(chosen)


def _check_blocks(plan: CalibrationPlan) -> None:
    from kernels.attention.arguments import ArgumentError, check_block_size

    try:
        check_block_size(plan.block_size)
    except ArgumentError as error:
        raise InvalidInput(str(error), param="block_size", actual=plan.block_size) from None
    if plan.long_block is None:
        return
    try:
        plan.long_block.checked(plan.block_size)
    except ArgumentError as error:
        written = "{}:{}".format(*plan.long_block)
        raise InvalidInput(str(error), param="long_block", actual=written) from None


def _check_rise(plan: CalibrationPlan) -> None:
    from engine.checkpoint.calibration import check_rise
    from kernels.attention.arguments import ArgumentError

    try:
        check_rise(plan.rise)
    except ArgumentError as error:
        raise InvalidInput(str(error), param="rise", limit=1, actual=plan.rise) from None


def _check_numbers(chosen: Chosen) -> None:
    if chosen.strength is not None and not 0 < chosen.strength <= 1:
        raise InvalidInput(
            f"strength must be above 0 and at most 1, got {chosen.strength:g}",
            param="strength",
            limit=1,
            actual=chosen.strength,
        )
    for name, least in _LEAST.items():
        value = getattr(chosen, name)
        if value is not None and value < least:
            raise InvalidInput(
                f"{name} must be at least {least}, got {value}",
                param=name,
                limit=least,
                actual=value,
            )


def _check_heeded(chosen: Chosen) -> None:
    """What would be passed over in silence is refused by name."""
    values = {f"--{name}": getattr(chosen, name) for name in _TRAINS}
    given = [option for option, value in values.items() if value is not None and value is not False]
    if given and not chosen.train and not _changes_rise_alone(chosen, given):
        need = "needs" if len(given) == 1 else "need"
        raise InvalidInput(f"{' and '.join(given)} {need} data: --train DATA", param="train")
    if chosen.text and chosen.train:
        raise InvalidInput(
            "--text is not read with --train, which calibrates on its own documents", param="text"
        )


def _changes_rise_alone(chosen: Chosen, given: Sequence[str]) -> bool:
    return given == ["--further"] and chosen.rise is not None


def _check_further(chosen: Chosen) -> None:
    """Training goes on with the model as it is: what calibration would choose is chosen. The rise
    is chosen when all else is learned."""
    given = [option for option in _CALIBRATES if getattr(chosen, option) is not None]
    if given == ["rise"] and not chosen.train:
        return
    if given:
        raise InvalidInput(
            f"--further goes on from the model's own {given[0]}, and takes no other",
            param=given[0],
            actual=getattr(chosen, given[0]),
        )


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
