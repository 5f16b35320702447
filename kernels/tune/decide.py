"""The fastest of some candidates that gives the same answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from kernels.attention.custom_op import launch_errors
from kernels.attention.gpu.constants import forget_constants
from kernels.bench.measure import Run
from kernels.tune.choices import Choice, Numbers

GAIN_WORTH_A_LINE = 0.98
MOST_DIFFERENCE = 3e-2
"""Of an answer from the default's, relative to its greatest number: a few roundings of 16 bits."""


class Timed(NamedTuple):
    numbers: Numbers | None  # None for the default
    seconds: float | None  # None where it does not fit the device, or answers otherwise
    note: str = ""


def decide(
    choice: Choice,
    candidates: Sequence[Numbers],
    chosen: dict[str, Numbers],
    seconds: Callable[[Run], float],
) -> list[Timed]:
    """Writes the fastest into the table, or no line where the default is as good."""
    chosen.pop(choice.purpose, None)
    forget_constants()
    expected = _answers(choice.run)
    times = [Timed(None, seconds(choice.run))]
    for numbers in candidates:
        chosen[choice.purpose] = numbers
        forget_constants()
        times.append(_timed(choice.run, numbers, expected, seconds))
    chosen.pop(choice.purpose, None)
    _choose(choice.purpose, times, chosen)
    forget_constants()
    return times


def _timed(
    run: Run, numbers: Numbers, expected: list[Tensor], seconds: Callable[[Run], float]
) -> Timed:
    try:
        difference = _difference(_answers(run), expected)
        if not difference <= MOST_DIFFERENCE:
            return Timed(numbers, None, f"differs by {difference:.2g}")
        return Timed(numbers, seconds(run))
    except launch_errors() as error:
        return Timed(numbers, None, type(error).__name__)


def _choose(purpose: str, times: Sequence[Timed], chosen: dict[str, Numbers]) -> None:
    default, *others = times
    fitting = [timed for timed in others if timed.seconds is not None]
    best = min(fitting, key=lambda timed: timed.seconds or 0.0, default=None)
    assert default.seconds is not None, "the default runs"
    if best is None or best.seconds is None or best.numbers is None:
        print(f"{purpose}: default, alone", flush=True)
    elif best.seconds > GAIN_WORTH_A_LINE * default.seconds:
        print(f"{purpose}: default, {default.seconds * 1e6:.0f} us", flush=True)
    else:
        chosen[purpose] = best.numbers
        gain = f"{best.seconds * 1e6:.0f} us for {default.seconds * 1e6:.0f}"
        print(f"{purpose}: {best.numbers}, {gain}", flush=True)


def _answers(run: Run) -> list[Tensor]:
    found = run()
    every = found if isinstance(found, tuple | list) else [found]
    return [x.detach().float() for x in every if isinstance(x, Tensor)]


def _difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """NaN, which compares as false, where either is not finite."""
    return max(
        (float((x - y).abs().max() / y.abs().max()) for x, y in zip(found, expected, strict=True)),
        default=0.0,
    )
