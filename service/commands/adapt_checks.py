"""What `lln adapt` refuses before a model is read and minutes are spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.errors import InvalidInput
from service.commands.base import Chosen

if TYPE_CHECKING:
    from engine.adapt.calibrate import CalibrationPlan

CALIBRATES = {
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


def check_options(chosen: Chosen) -> None:
    _check_numbers(chosen)
    if chosen.further:
        _check_further(chosen)
    _check_heeded(chosen)


def check_plan(plan: CalibrationPlan) -> None:
    _check_blocks(plan)
    _check_rise(plan)


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
    given = [option for option in CALIBRATES if getattr(chosen, option) is not None]
    if given == ["rise"] and not chosen.train:
        return
    if given:
        raise InvalidInput(
            f"--further goes on from the model's own {given[0]}, and takes no other",
            param=given[0],
            actual=getattr(chosen, given[0]),
        )
