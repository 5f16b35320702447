"""Long work in steps, between which the device may run something else.

A function that works in steps is a generator. It yields nothing wherever other work may run, some
tens of milliseconds apart, and returns its answer:

    def attention_sums(head: Head) -> Steps[Tensor]:
        prefixes = yield from head.prefixes()  # the steps of another function, and its answer
        for block in head.blocks:
            prefixes.add(block)
            yield
        return prefixes.sums

`finish(steps)` runs all of them now. On a server, the device worker runs one step at a time, and
short texts run in between.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")
Owner = TypeVar("Owner")

Steps: TypeAlias = Generator[None, None, T]
"""Work that pauses between its steps and returns a T."""


class Answer(NamedTuple, Generic[T]):
    """What finished steps returned; None is an answer too."""

    value: T


def advance(steps: Steps[T]) -> Answer[T] | None:
    """Run one step. The result is None until the steps return their answer."""
    try:
        next(steps)
    except StopIteration as end:
        return Answer(end.value)
    return None


def finish(steps: Steps[T]) -> T:
    """Run all steps now."""
    while (answer := advance(steps)) is None:
        pass
    return answer.value


def one_step(work: Callable[[], T]) -> Steps[T]:
    """Work that does not pause."""
    yield from ()
    return work()


def in_slices(steps: Steps[T], seconds: float) -> Steps[T]:
    """The same work with fewer pauses: one after each slice of this many seconds."""
    while True:
        slice_ends = perf_counter() + seconds
        while perf_counter() < slice_ends:
            if (answer := advance(steps)) is not None:
                return answer.value
        yield


def computed_once(method: Callable[[Owner], Steps[T]]) -> Callable[[Owner], Steps[T]]:
    """A method in steps whose answer its object computes once and remembers."""
    name = f"_{method.__name__}_answer"

    @wraps(method)
    def once(self: Owner) -> Steps[T]:
        answers: dict[str, Any] = self.__dict__
        if name not in answers:
            answers[name] = yield from method(self)
        result: T = answers[name]
        return result

    return once
