"""Every error that the engine raises on purpose, with the value at fault and the limit it broke.

The class says what kind of failure it is. The front ends map kinds to HTTP and gRPC in one table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

Quantity = int | float | str

ValueT = TypeVar("ValueT")

_MAX_SHOWN = 80


def shown(value: Quantity) -> str:
    """A caller's value as an error repeats it: shortened, since the caller knows the rest."""
    text = str(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


class LLNError(Exception):
    """Base of all deliberate failures. `code` is stable and meant for programs. Messages and fields
    repeat a caller's values through `shown`."""

    code = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        limit: Quantity | None = None,
        actual: Quantity | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.param = None if param is None else shown(param)
        self.limit = limit
        self.actual = shown(actual) if isinstance(actual, str) else actual
        self.retry_after_s = retry_after_s

    def for_caller(self) -> LLNError:
        """A new exception with the same content: callers must not share one traceback."""
        return self.about(self.param)

    def about(self, param: str | None, *, message: str | None = None) -> LLNError:
        """The same error with another name for the parameter at fault."""
        return type(self)(
            message or self.message,
            code=self.code,
            param=param,
            limit=self.limit,
            actual=self.actual,
            retry_after_s=self.retry_after_s,
        )

    def with_param(self, param: str) -> LLNError:
        """The same error about a parameter of another name, in the message too."""
        old = self.param or ""
        is_named = bool(old) and self.message.startswith(old)
        return self.about(
            param, message=param + self.message.removeprefix(old) if is_named else None
        )


class InvalidInput(LLNError):
    """The caller sent something that can never be served as it is."""

    code = "invalid_input"


class TextTooLong(InvalidInput):
    """A text has more tokens than the model or the configuration accepts."""

    code = "text_too_long"


class ModelNotFound(LLNError):
    """No model of this name is loaded, or none could be found."""

    code = "model_not_found"


class ResourceNotFound(LLNError):
    """A thing other than a model (a benchmark run, for instance) does not exist."""

    code = "not_found"


class CheckpointError(LLNError):
    """A model folder is incomplete, of an unknown family, or inconsistent."""

    code = "invalid_checkpoint"


class QueueFull(LLNError):
    """The queue is full; try again later."""

    code = "queue_full"


class InsufficientMemory(LLNError):
    """Work does not fit into its memory, even alone and in its smallest parts."""

    code = "insufficient_memory"


class DeadlineExceeded(LLNError):
    """The caller's deadline passed before the work was done."""

    code = "deadline_exceeded"


class RequestCancelled(LLNError):
    """The caller left."""

    code = "cancelled"


class EngineUnavailable(LLNError):
    """The engine is starting, draining or has stopped."""

    code = "unavailable"


class RankLost(EngineUnavailable):
    """A rank was lost while it read a part of this document; try again."""

    code = "rank_lost"


class DeviceFailure(LLNError):
    """The device failed while it ran this work."""

    code = "device_failure"


def unknown_name(
    what: str,
    name: object,
    known: Iterable[str],
    *,
    param: str | None = None,
    code: str | None = None,
    error: type[LLNError] = InvalidInput,
) -> LLNError:
    """The error for a name that is not in a list. It repeats the name and the whole list."""
    choices = ", ".join(known)
    return error(
        f"unknown {what} {shown(str(name))!r}; choose one of {choices}",
        code=code,
        param=param,
        limit=choices,
        actual=str(name),
    )


def find_named(
    what: str,
    name: str,
    known: Mapping[str, ValueT],
    *,
    param: str | None = None,
    code: str | None = None,
) -> ValueT:
    """The item of this name, or an `InvalidInput` that lists the known names."""
    if name not in known:
        raise unknown_name(what, name, known, param=param, code=code)
    return known[name]
