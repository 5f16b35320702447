"""Units of work as the device's thread runs them: whole batches, and sweeps a step at a time."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Generic, Protocol, TypeVar

from engine.errors import DeviceFailure
from engine.jobs import Job, Unit
from engine.memory import is_out_of_memory
from engine.observer import EngineObserver
from engine.orders import Delivered, Outcome, Outcomes, answer_to
from engine.stretches import Stretches

PayloadT = TypeVar("PayloadT")
ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)

logger = logging.getLogger(__name__)


class Stepwise(Protocol[ResultT_co]):
    """Work on one text that takes many units."""

    @property
    def result(self) -> ResultT_co | None:
        """None until the last step is done."""
        ...

    def step(self) -> Sequence[object]:
        """Do a little more, and say what there is to tell the caller of it."""
        ...


class Finished(Protocol):
    """Hears of every unit that ran, and how long it took."""

    def __call__(self, unit: Unit, compute_s: float, *, failed: bool) -> None: ...


class UnitRunner(Generic[PayloadT, ResultT]):
    """Runs units and says what each meant for its jobs. What it holds of a sweep between two
    steps is the thread's own."""

    def __init__(
        self,
        *,
        run: Callable[[str, Sequence[PayloadT]], Sequence[ResultT]],
        sweep: Callable[[str, PayloadT], Stepwise[ResultT]],
        finished: Finished,
        observer: EngineObserver,
    ) -> None:
        self._run = run
        self._open_sweep = sweep
        self._finished = finished
        self._observer = observer
        self._sweeps: dict[Job, Stepwise[ResultT]] = {}  # under way

    @property
    def sweeping(self) -> Iterable[Job]:
        return self._sweeps

    def holds(self, job: Job) -> bool:
        return job in self._sweeps

    def drop(self, job: Job) -> None:
        """This frees a lot of memory, which takes time."""
        del self._sweeps[job]

    def run(self, unit: Unit) -> Outcomes:
        return self._advance(unit) if unit.kind == "sweep_tile" else self._outcomes(unit)

    def _advance(self, unit: Unit) -> Outcomes:
        """One step of a sweep; after its last one, or a failure, nothing of it stays."""
        (job,) = unit.jobs
        started_at = time.monotonic()
        try:
            if job not in self._sweeps:
                self._sweeps[job] = self._open_sweep(job.model, job.payload)
                job.stretches = Stretches()
            events = self._sweeps[job].step()
        except Exception as error:
            traceback.clear_frames(error.__traceback__)
            logger.warning("A sweep of %d tokens failed", job.tokens, exc_info=error)
            self._finished(unit, time.monotonic() - started_at, failed=True)
            self._sweeps.pop(job, None)
            return [Outcome(job, error=answer_to(error))]
        step_s = time.monotonic() - started_at
        assert job.started_at is not None, "set with its first tile"
        assert job.stretches is not None, "set with its first tile"
        job.stretches.add_tile(started_at, step_s)
        self._finished(unit, step_s, failed=False)
        value = self._sweeps[job].result
        if value is None:
            return [Outcome(job, events=events)] if job.on_event is not None else []
        self.drop(job)
        delivered = Delivered(
            value,
            job.started_at - job.enqueued_at,
            job.stretches.busy_s,
            job.started_at,
            job.stretches.as_tuple(),
        )
        return [Outcome(job, result=delivered, events=events)]

    def _outcomes(self, unit: Unit) -> Outcomes:
        """Run a unit. If several jobs fail together, run each alone, so that only the guilty do;
        if they do not fit in memory together, run half of them at a time."""
        result = self._attempt(unit)
        if not isinstance(result, Exception):
            return result
        # The frames of the failed run would keep its tensors alive as long as the error.
        traceback.clear_frames(result.__traceback__)
        if len(unit.jobs) == 1:
            return [Outcome(unit.jobs[0], error=answer_to(result))]
        if is_out_of_memory(result):
            self._observer.recovered_from_oom()
            return list(chain.from_iterable(map(self._retry, unit.halves())))
        return list(chain.from_iterable(map(self._retry, unit.singly())))

    def _retry(self, part: Unit) -> Outcomes:
        """Without those whose callers left meanwhile."""
        now = time.monotonic()
        staying = tuple(job for job in part.jobs if not job.has_departed(now))
        return self._outcomes(Unit(staying)) if staying else []

    def _attempt(self, unit: Unit) -> Outcomes | Exception:
        started_at = time.monotonic()
        try:
            values = self._values(unit)
        except Exception as error:
            logger.warning("A %s of %d failed", unit.kind, len(unit.jobs), exc_info=error)
            self._finished(unit, time.monotonic() - started_at, failed=True)
            return error
        compute_s = time.monotonic() - started_at
        self._finished(unit, compute_s, failed=False)
        return [
            Outcome(job, Delivered(value, started_at - job.enqueued_at, compute_s, started_at))
            for job, value in zip(unit.jobs, values, strict=True)
        ]

    def _values(self, unit: Unit) -> Sequence[object]:
        payloads = [job.payload for job in unit.jobs]
        if unit.kind != "batch":
            return [payload() for payload in payloads]
        values = self._run(unit.model, payloads)
        if len(values) != len(payloads):
            raise DeviceFailure(f"The device gave {len(values)} results for {len(payloads)} texts.")
        return values
