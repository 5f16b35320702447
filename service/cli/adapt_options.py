"""The options of `lln adapt`, checked before a model is read and minutes are spent."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, get_args

from engine.errors import InvalidInput
from engine.types import OWN_CONTEXTS, PositionScheme, Precision
from service.cli.common import Chosen, named, path_of

if TYPE_CHECKING:
    from engine.checkpoint.block_size import LongBlock
    from engine.training.calibrate import CalibrationPlan

CALIBRATION_OPTIONS = {
    "block_size": "block_size",
    "long_block": "long_block",
    "rise": "pooling_slope",
    "chunk_context": "chunk_context",
    "positions": "positions",
    "samples": "num_samples",
}
"""Options of calibration, and the plan's names for them."""

SETTINGS = ("rise", "chunk_context")
"""Those that can be changed in a model that was adapted before."""

_TRAINING_OPTIONS = ("recipe", "seed", "precision", "strength", "further", "control")
"""Options that only training reads."""

_LEAST = {"samples": 1, "seed": 0}


def add_calibration_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--text",
        action="append",
        default=[],
        type=path_of,
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
    command.add_argument(
        "--chunk-context",
        choices=OWN_CONTEXTS,
        help="what chunks take from their document if a request says nothing of it "
        "(default: balanced)",
    )
    command.add_argument("--samples", type=int, help="windows of text to measure on (default: 32)")


def add_training_options(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("training, which improves on calibration alone")
    group.add_argument(
        "--train",
        type=named,
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
        "large, for a GPU. questions: teach late chunks to answer questions, with --further, for a "
        "GPU. imitate: long stages, for a GPU; not for models that pool by their first token. Or a "
        "JSON file with a list of stages",
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
        "--rise or --chunk-context and without --train, change only these",
    )
    group.add_argument("--control", action="store_true", help="train without LLN, as a comparison")


def _long_block(written: str) -> LongBlock:
    from engine.checkpoint.block_size import LongBlock

    beyond, _, size = written.partition(":")
    if not (beyond.isdecimal() and size.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected TOKENS:SIZE, as 4096:256, got {written!r}")
    return LongBlock(int(beyond), int(size))


def check_options(chosen: Chosen) -> None:
    """Reject options that are out of range, contradict each other, or would be ignored."""
    _check_numbers(chosen)
    if chosen.further:
        _check_further(chosen)
    values = {f"--{name}": getattr(chosen, name) for name in _TRAINING_OPTIONS}
    given = [option for option, value in values.items() if value is not None and value is not False]
    changes_settings = given == ["--further"] and any(
        getattr(chosen, option) is not None for option in SETTINGS
    )
    if given and not chosen.train and not changes_settings:
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
    """Training continues with the model's own calibration. Only what can be changed by itself may
    be given, and only without --train."""
    given = [option for option in CALIBRATION_OPTIONS if getattr(chosen, option) is not None]
    if not chosen.train:
        given = [option for option in given if option not in SETTINGS]
    if given:
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
