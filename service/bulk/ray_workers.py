"""Workers on a Ray cluster, an engine each. They take parts, and are replaced when they die.

Plain actors do this with less than Ray Data would need: the parts, and the files that make a job
go on after a kill, are those of a job in one process, and so are the bytes of the output.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from engine.config import EngineConfig
from engine.errors import LLNError
from engine.types import ModelInfo
from service.bulk.balance import largest_first
from service.bulk.cluster import (
    ClusterOptions,
    NotEnoughResources,
    connected,
    workers_that_fit,
)
from service.bulk.parts import PART_TOKENS, EmbeddedPart, Part
from service.bulk.rows import RowOptions
from service.bulk.worker import Worker, WorkerInfo

START_TIMEOUT_S = 300.0
_MAX_DEATHS = 5
_AHEAD_OF_EACH = 4
_MAX_AHEAD = 64
_PARTS_AT_ONCE = {"cpu": 1, "cuda": 4}
"""Of a worker. A kill repeats so many parts. A GPU has nothing to do while a part is on its way."""

_END: Final = object()
_START: Final = -1  # in place of a part's number
_log = logging.getLogger(__name__)


class WorkerLost(LLNError):
    """A part of the job stopped every worker that took it."""

    code = "worker_lost"


class WorkersDiffer(LLNError):
    """Workers have other weights, or another LLN, than each other."""

    code = "workers_differ"


class _WorkerDied(Exception):
    """The process of a worker, or its machine, is gone."""


class _Worker:
    """A place for one actor after the other."""

    def __init__(self, ray: Any, options: ClusterOptions, model: str, config: EngineConfig) -> None:
        self._ray = ray
        self._create = (
            ray.remote(Worker)
            .options(num_cpus=options.worker_cpus, num_gpus=options.worker_gpus)
            .remote
        )
        self._arguments = (model, config)
        errors = ray.exceptions
        self._gone = (errors.RayActorError, errors.NodeDiedError, errors.ObjectLostError)
        self._starting = asyncio.Lock()
        self._is_up = False
        self._actor: Any = None

    async def start(self) -> WorkerInfo:
        self._actor = self._create(*self._arguments)
        info: WorkerInfo = await self._answer(self._actor.start.remote())
        self._is_up = True
        return info

    async def restart(self) -> None:
        async with self._starting:
            if not self._is_up:
                await self.start()

    async def embed(self, part: Part, how: RowOptions) -> EmbeddedPart:
        _log.info("part %d is sent", part.number)
        done: EmbeddedPart = await self._answer(self._actor.embed.remote(part, how))
        return done

    async def _answer(self, reference: Any) -> Any:
        actor = self._actor
        try:
            return await reference
        except self._gone as error:
            if actor is self._actor:
                self._is_up = False
            raise _WorkerDied(str(error)) from None
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, LLNError):
                raise error.cause from None
            raise


class RayWorkers:
    """Embeds parts on all workers at once."""

    def __init__(self, workers: Sequence[_Worker], infos: Sequence[WorkerInfo]) -> None:
        self._workers = workers
        self._infos = infos

    @property
    def model(self) -> ModelInfo:
        return self._infos[0].model

    async def embed(self, parts: Iterable[Part], how: RowOptions) -> AsyncIterator[EmbeddedPart]:
        device = self.model.device.partition(":")[0]
        idle = deque(list(self._workers) * _PARTS_AT_ONCE.get(device, 1))
        max_ahead = min(_AHEAD_OF_EACH * len(idle), _MAX_AHEAD)
        ordered = largest_first(
            parts, attrgetter("cost"), max_items=max_ahead, max_cost=max_ahead * PART_TOKENS
        )
        draw = _Draw(ordered)
        tasks: dict[asyncio.Task[EmbeddedPart | None], tuple[_Worker, Part | None]] = {}
        try:
            while True:
                while idle and (part := await draw.next()) is not None:
                    worker = idle.popleft()
                    tasks[asyncio.ensure_future(worker.embed(part, how))] = (worker, part)
                if not any(part for _, part in tasks.values()) and draw.is_empty:
                    return
                finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in finished:
                    worker, part = tasks.pop(task)
                    try:
                        done = task.result()
                    except _WorkerDied as error:
                        draw.put_back(part, error)
                        tasks[asyncio.ensure_future(worker.restart())] = (worker, None)
                        continue
                    idle.append(worker)
                    if done is None:
                        draw.forget_failed_starts()
                    else:
                        yield done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class _Draw:
    """The parts that no worker has: those that a worker died of first."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self._parts = iter(parts)
        self._again: deque[Part] = deque()
        self._deaths: dict[int, int] = {}
        self._has_more = True

    @property
    def is_empty(self) -> bool:
        return not self._again and not self._has_more

    async def next(self) -> Part | None:
        if self._again:
            return self._again.popleft()
        if not self._has_more:
            return None
        part: Any = await asyncio.to_thread(next, self._parts, _END)
        if part is _END:
            self._has_more = False
            return None
        assert isinstance(part, Part)
        return part

    def forget_failed_starts(self) -> None:
        self._deaths.pop(_START, None)

    def put_back(self, part: Part | None, error: Exception) -> None:
        number = _START if part is None else part.number
        self._deaths[number] = self._deaths.get(number, 0) + 1
        if self._deaths[number] == _MAX_DEATHS:
            what = (
                "starting again"
                if part is None
                else f"rows {part.rows[0].id!r} to {part.rows[-1].id!r}"
            )
            raise WorkerLost(
                f"{what} ended {_MAX_DEATHS} workers, perhaps for want of memory; what is written "
                f"is kept. Ray says: {error}",
                limit=_MAX_DEATHS,
            )
        if part is not None:
            self._again.append(part)


@asynccontextmanager
async def ray_workers(
    model: str, config: EngineConfig, options: ClusterOptions
) -> AsyncIterator[RayWorkers]:
    """Workers that have loaded the model, all the same one."""
    with connected(options) as ray:
        number = workers_that_fit(ray, options)
        if not config.num_threads:
            config = replace(config, num_threads=options.worker_cpus)
        workers = [_Worker(ray, options, model, config) for _ in range(number)]
        infos = await _start(workers)
        _check_alike(infos)
        yield RayWorkers(workers, infos)


async def _start(workers: Sequence[_Worker]) -> list[WorkerInfo]:
    starts = [asyncio.ensure_future(_started(worker)) for worker in workers]
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            return await asyncio.gather(*starts)
    except TimeoutError:
        up = sum(start.done() and not start.cancelled() for start in starts)
        raise NotEnoughResources(
            f"{up} of {len(workers)} workers started within {START_TIMEOUT_S:g} s: other jobs "
            "hold the rest of the cluster; lower --workers, or wait for them",
            code="workers_not_started",
            param="workers",
            limit=up,
            actual=len(workers),
        ) from None
    finally:
        for start in starts:
            start.cancel()


async def _started(worker: _Worker) -> WorkerInfo:
    for _ in range(_MAX_DEATHS):
        try:
            return await worker.start()
        except _WorkerDied as error:
            died = error
    raise WorkerLost(
        f"{_MAX_DEATHS} processes ended while they loaded the model, perhaps for want of memory. "
        f"Ray says: {died}",
        limit=_MAX_DEATHS,
    )


def _check_alike(infos: Sequence[WorkerInfo]) -> None:
    first = infos[0]
    for other in infos[1:]:
        for name in ("revision", "calibration", "dtype", "device"):
            values = getattr(first.model, name), getattr(other.model, name)
            if name == "device":
                values = values[0].partition(":")[0], values[1].partition(":")[0]
            if values[0] != values[1]:
                raise WorkersDiffer(
                    f"{first.model.name} has {name} {values[0]} on {first.host} and {values[1]} "
                    f"on {other.host}: install the same model on all nodes",
                    param="model",
                )
        if first.version != other.version:
            raise WorkersDiffer(
                f"lln is {first.version} on {first.host} and {other.version} on {other.host}: "
                "install the same version on all nodes"
            )
