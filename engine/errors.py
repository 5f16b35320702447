"""Every error the engine raises on purpose, each naming the value at fault and the limit it broke.

The classes say what kind of failure it is; how a kind is shown over HTTP or gRPC is the business
of the front ends, which hold one table for both.
"""

from __future__ import annotations

Quantity = int | float | str

_MAX_SHOWN = 80


def shown(value: Quantity) -> str:
    """As much of a caller's value as an error repeats; the caller knows the rest."""
    text = str(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


class LLNError(Exception):
    """Base of all deliberate failures. `code` is stable and meant for programs; a message repeats
    what a caller sent as `shown` does."""

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
        """A fresh exception of the same content, so that callers never share one traceback."""
        return type(self)(
            self.message,
            code=self.code,
            param=self.param,
            limit=self.limit,
            actual=self.actual,
            retry_after_s=self.retry_after_s,
        )


class InvalidInput(LLNError):
    """The caller sent something that can never be served as it stands."""

    code = "invalid_input"


class TextTooLong(InvalidInput):
    """A text has more tokens than the model or the configuration accepts."""

    code = "text_too_long"


class ModelNotFound(LLNError):
    """No model of that name is loaded, or could be found."""

    code = "model_not_found"


class ResourceNotFound(LLNError):
    """A thing other than a model (a benchmark run, for instance) does not exist."""

    code = "not_found"


class CheckpointError(LLNError):
    """A model folder is incomplete, of an unknown family, or not what it claims to be."""

    code = "invalid_checkpoint"


class QueueFull(LLNError):
    """The engine holds as much work as it is allowed to; come back later."""

    code = "queue_full"


class InsufficientMemory(LLNError):
    """Work that does not fit into the memory it may have, even alone and in its smallest parts."""

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


class DeviceFailure(LLNError):
    """The device failed while it ran this work."""

    code = "device_failure"
