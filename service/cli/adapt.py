"""`lln adapt`: make an LLN+Diag model of a softmax checkpoint, by calibration or by training.

Options are checked before a model is read and minutes are spent.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from engine.errors import InvalidInput
from engine.types import PositionScheme, Precision
from service.cli.common import Chosen, Commands, add_command, add_json, print_json, tell
from service.environment import load_settings

if TYPE_CHECKING:
    from engine.checkpoint.block_size import LongBlock
    from engine.training.calibrate import CalibrationPlan
    from engine.training.data import Document
    from engine.training.recipe import Stage, TrainingPlan
    from engine.training.trainer import StepReport

CALIBRATION_OPTIONS = {
    "block_size": "block_size",
    "long_block": "long_block",
    "rise": "pooling_slope",
    "positions": "positions",
    "samples": "num_samples",
}
"""Options of calibration, and the plan's names for them."""

_TRAINING_OPTIONS = ("recipe", "seed", "precision", "strength", "further", "control")
"""Options that only training reads."""

_LEAST = {"samples": 1, "seed": 0}


def add_adapt(commands: Commands) -> None:
    about = "make an LLN+Diag model of a softmax checkpoint"
    command = add_command(commands, "adapt", _adapt, about)
    command.add_argument("model", help="a folder, or a name that `lln models` lists")
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
        help="tokens of one softmax block, a multiple of 16 (default: 256)",
    )
    command.add_argument(
        "--long-block",
        type=_long_block,
        metavar="TOKENS:SIZE",
        help="use blocks of SIZE for texts of more than TOKENS tokens, which makes them faster "
        "(default: the same blocks for all texts)",
    )
    command.add_argument(
        "--positions",
        choices=get_args(PositionScheme),
        help="how learned positions continue beyond their table: repeat the table, stretch it, or "
        "restart it in each block (default: tile)",
    )
    command.add_argument(
        "--rise",
        type=float,
        metavar="SHARE",
        help="how much more the last token of a long text counts in its vector than the average "
        "token, and how much less the first, 0 to 1. It compensates LLN's preference for the "
        "beginning of a text (default: 0; for models that pool by the mean)",
    )
    command.add_argument("--samples", type=int, help="windows of text to measure on (default: 32)")
    _add_training(command.add_argument_group("training, which improves on calibration alone"))
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
        help="lln (default): train only LLN's parameters; texts of one block keep their vectors. "
        "encoder: train the whole encoder with them. documents: the same for a model that was "
        "trained before, with --further. passages: teach late chunks what their document is about, "
        "with --further. passages-long: the same in eight times as many steps, each three times as "
        "large, for a GPU. imitate: long stages, for a GPU; not for models that "
        "pool by their first token. Or a JSON file with a list of stages",
    )
    group.add_argument("--seed", type=int, help="seed of all random choices (default: 0)")
    group.add_argument(
        "--precision",
        choices=get_args(Precision),
        help="precision of the model's products; learned parameters stay float32 (default: "
        "float32; bfloat16 needs a GPU or a CPU with units for it)",
    )
    group.add_argument(
        "--strength",
        type=float,
        metavar="SHARE",
        help="how far to go from the calibrated numbers to the trained ones, above 0 and at most "
        "1 (default: 1); less stays closer to the teacher and finds less",
    )
    group.add_argument(
        "--further",
        action="store_true",
        help="continue from what an adapted model has learned, and calibrate nothing; with "
        "--rise and without --train, change only the rise",
    )
    group.add_argument("--control", action="store_true", help="train without LLN, as a comparison")


def _long_block(written: str) -> LongBlock:
    from engine.checkpoint.block_size import LongBlock

    beyond, _, size = written.partition(":")
    if not (beyond.isdecimal() and size.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected TOKENS:SIZE, as 4096:256, got {written!r}")
    return LongBlock(int(beyond), int(size))


def _adapt(chosen: Chosen) -> None:
    from engine.training.calibrate import CalibrationPlan

    check_options(chosen)
    plan = CalibrationPlan(**_given(chosen, CALIBRATION_OPTIONS))
    check_plan(plan)
    if chosen.train:
        _train(chosen, plan)
    elif chosen.further:
        _change_pooling_slope(chosen, plan.pooling_slope)
    else:
        _calibrate(chosen, plan)


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


def _change_pooling_slope(chosen: Chosen, pooling_slope: float) -> None:
    from engine.training.convert import with_pooling_slope

    config = load_settings().engine
    made = with_pooling_slope(chosen.model, chosen.out, pooling_slope, config=config)
    if chosen.json:
        print_json({"folder": str(made)})
    else:
        print(f"{made}: {chosen.model} with a rise of {pooling_slope:g}")


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


def check_options(chosen: Chosen) -> None:
    """Reject options that are out of range, contradict each other, or would be ignored."""
    _check_numbers(chosen)
    if chosen.further:
        _check_further(chosen)
    values = {f"--{name}": getattr(chosen, name) for name in _TRAINING_OPTIONS}
    given = [option for option, value in values.items() if value is not None and value is not False]
    changes_pooling_slope = given == ["--further"] and chosen.rise is not None
    if given and not chosen.train and not changes_pooling_slope:
        need = "needs" if len(given) == 1 else "need"
        raise InvalidInput(f"{' and '.join(given)} {need} data: --train DATA", param="train")
    if chosen.text and chosen.train:
        raise InvalidInput(
            "--text is not read with --train, which calibrates on its own documents", param="text"
        )
    if chosen.text and chosen.further:
        raise InvalidInput(
            "--text is not read with --further, which calibrates nothing", param="text"
        )


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


def _check_further(chosen: Chosen) -> None:
    """Training continues with the model's own calibration; only --rise may change, by itself."""
    given = [option for option in CALIBRATION_OPTIONS if getattr(chosen, option) is not None]
    if given and (given != ["rise"] or chosen.train):
        option = f"--{given[0].replace('_', '-')}"
        raise InvalidInput(
            f"{option} cannot be combined with --further, which keeps the model's own",
            param=given[0],
            actual=getattr(chosen, given[0]),
        )


def check_plan(plan: CalibrationPlan) -> None:
    """Reject block sizes and slopes that no model can have."""
    from engine.checkpoint.calibration import check_pooling_slope
    from kernels.attention.arguments import ArgumentError, check_block_size

    try:
        check_block_size(plan.block_size)
    except ArgumentError as error:
        raise InvalidInput(str(error), param="block_size", actual=plan.block_size) from None
    if plan.long_block is not None:
        try:
            plan.long_block.checked(plan.block_size)
        except ArgumentError as error:
            written = "{}:{}".format(*plan.long_block)
            raise InvalidInput(str(error), param="long_block", actual=written) from None
    try:
        check_pooling_slope(plan.pooling_slope)
    except ArgumentError as error:
        raise InvalidInput(str(error), param="rise", limit=1, actual=plan.pooling_slope) from None
