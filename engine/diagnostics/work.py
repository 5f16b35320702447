"""Work in steps: a generator that yields wherever the device may do something else meanwhile.

A diagnosis of a long text takes the device for seconds. Between two steps, short texts run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Owner = TypeVar("Owner")

Work: TypeAlias = Generator[None, None, T]


def finish(work: Work[T]) -> T:
    """Do all of it now."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def shared(method: Callable[[Owner], Work[T]]) -> Callable[[Owner], Work[T]]:
    """Work that an object does once, for whoever asks first, and remembers."""
    name = f"_{method.__name__}_done"

    @wraps(method)
    def once(self: Owner) -> Work[T]:
        done: dict[str, Any] = self.__dict__
        if name not in done:
            done[name] = yield from method(self)
        result: T = done[name]
        return result

    return once
