"""How callers submit work: texts, calls, and work in steps; at once or in a session of parts."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, TypeVarTuple, cast

from engine.scheduling.request import CallKind, PayloadT, Request, TimedResult, ValueT
from engine.steps import Steps, advance

ResultT = TypeVar("ResultT")
Args = TypeVarTuple("Args")


class Submitter(ABC, Generic[PayloadT, ResultT]):
    """Takes requests for the device."""

    @abstractmethod
    def submit(
        self, requests: Sequence[Request[PayloadT]], timeout_s: float | None = None
    ) -> list[asyncio.Future[TimedResult[ResultT]]]:
        """Queue the requests: all of them, or none.

        Raises QueueFull, EngineUnavailable or DeadlineExceeded when they are refused.
        """

    def call(
        self,
        fn: Callable[[*Args], ValueT],
        *args: *Args,
        kind: CallKind = "diagnosis",
        model: str = "",
        tokens: int = 0,
        timeout_s: float | None = None,
    ) -> asyncio.Future[TimedResult[ValueT]]:
        """Queue a function that needs the device to itself. It runs when no text waits, or when
        calls are owed their share of the device's time. Refused as `submit` is."""
        request: Request[Any] = Request(
            model=model, payload=partial(fn, *args), tokens=tokens, kind=kind
        )
        (future,) = self.submit([request], timeout_s)
        return cast(asyncio.Future[TimedResult[ValueT]], future)

    async def run_steps(
        self,
        steps: Steps[ValueT],
        *,
        kind: CallKind,
        model: str,
        tokens: int,
        on_step: Callable[[float], None] | None = None,
    ) -> TimedResult[ValueT]:
        """Run each step as a call, so that texts run between two steps.

        `on_step` is called with the seconds that each step took.
        """
        queue_s: float | None = None
        compute_s = 0.0
        while True:
            step = await self.call(partial(advance, steps), kind=kind, model=model, tokens=tokens)
            queue_s = step.queue_s if queue_s is None else queue_s
            compute_s += step.compute_s
            if on_step is not None:
                on_step(step.compute_s)
            if step.value is not None:
                return TimedResult(step.value.value, queue_s, compute_s)


class Session(Submitter[PayloadT, ResultT]):
    """One caller's work in several parts.

    The first part may be refused. Later parts are refused neither because the queue is full nor
    because the worker drains; a worker that drains waits for open sessions.
    """

    def __init__(
        self,
        admit: Callable[
            [Sequence[Request[PayloadT]], float | None, bool, int],
            list[asyncio.Future[TimedResult[ResultT]]],
        ],
    ) -> None:
        self._admit = admit
        self._has_begun = False

    def submit(
        self,
        requests: Sequence[Request[PayloadT]],
        timeout_s: float | None = None,
        *,
        later_tokens: int = 0,
    ) -> list[asyncio.Future[TimedResult[ResultT]]]:
        """Queue the requests. The first part is refused unless there is also room for this many
        tokens of later parts."""
        futures = self._admit(requests, timeout_s, self._has_begun, later_tokens)
        self._has_begun = True
        return futures
