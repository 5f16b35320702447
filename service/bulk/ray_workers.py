"""Workers on a Ray cluster, an engine each. They take stretches of rows, send pieces back as they
are done, and are replaced when they die.

Plain actors do this with less than Ray Data would need: the parts, and the files that make a job
go on after a kill, are those of a job in one process, and so are the bytes of the output.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from engine.config import EngineConfig
from engine.errors import LLNError
from engine.platform.process import allocator_environment
from engine.types import ModelInfo
from service.bulk.cluster import (
    ClusterOptions,
    NotEnoughResources,
    connected,
    workers_that_fit,
)
from service.bulk.embed import piece_cost_of
from service.bulk.pieces import Piece, Stretch
from service.bulk.rows import RowOptions
from service.bulk.waiting import WaitingStretches
from service.bulk.worker import Worker, WorkerInfo

START_TIMEOUT_S = 300.0
_MAX_DEATHS = 5
_SENT_AHEAD = 1
"""Stretches beyond those that a worker embeds: it would have nothing to do while one is on its
way, or while this process waits for the disk."""

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
            .options(
                num_cpus=options.worker_cpus,
                num_gpus=options.worker_gpus,
                # Ray's threads are there before the worker could tune the allocator.
                runtime_env={"env_vars": allocator_environment()},
            )
            .remote
        )
        self._arguments = (model, config)
        errors = ray.exceptions
        self._gone = (errors.RayActorError, errors.NodeDiedError, errors.ObjectLostError)
        self._starting = asyncio.Lock()
        self._is_up = False
        self._actor: Any = None
        self._num_at_once = 1
        self._sent: list[Stretch] = []
        self._died_of: list[Stretch] = []

    async def start(self) -> WorkerInfo:
        self._actor = self._create(*self._arguments)
        info: WorkerInfo = await self._answer(self._actor.start.remote())
        self._is_up = True
        self._num_at_once = info.stretches_at_once
        return info

    async def restart(self) -> None:
        async with self._starting:
            if not self._is_up:
                await self.start()

    async def embed(
        self, stretch: Stretch, how: RowOptions, piece_cost: int
    ) -> AsyncIterator[Piece]:
        _log.info("part %d: rows %d to %d are sent", stretch.part, stretch.first, stretch.end)
        send = self._actor.embed.options(num_returns="streaming").remote
        pieces = aiter(send(stretch, how, piece_cost))
        self._sent.append(stretch)
        try:
            while True:
                try:
                    reference = await self._answer(anext(pieces))
                except StopAsyncIteration:
                    return
                piece: Piece = await self._answer(reference)
                yield piece
        finally:
            self._sent.remove(stretch)

    def died_of(self, stretch: Stretch) -> bool:
        """Whether the process that is gone may have died of these rows: others only waited."""
        return any(one is stretch for one in self._died_of)

    async def _answer(self, reference: Any) -> Any:
        actor = self._actor
        try:
            return await reference
        except self._gone as error:
            if actor is self._actor and self._is_up:
                self._is_up = False
                self._died_of = self._sent[: self._num_at_once]
            raise _WorkerDied(str(error)) from None
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, LLNError):
                raise error.cause from None
            raise


class RayWorkers:
    """Embeds on all workers at once."""

    def __init__(self, workers: Sequence[_Worker], infos: Sequence[WorkerInfo]) -> None:
        self._workers = workers
        self._infos = infos

    @property
    def model(self) -> ModelInfo:
        return self._infos[0].model

    async def embed(self, stretches: Iterable[Stretch], how: RowOptions) -> AsyncIterator[Piece]:
        at_once = self._infos[0].stretches_at_once
        piece_cost = piece_cost_of(at_once * len(self._workers))
        places = list(self._workers) * (at_once + _SENT_AHEAD)
        waiting = WaitingStretches(stretches, num_takers=len(places))
        deaths = _Deaths()
        # A disk that is slower than the workers holds them up.
        done: asyncio.Queue[Piece | Exception | None] = asyncio.Queue(len(places))

        async def work(worker: _Worker) -> None:
            try:
                while (stretch := await waiting.take()) is not None:
                    left: Stretch | None = stretch
                    try:
                        async for piece in worker.embed(stretch, how, piece_cost):
                            await done.put(piece)
                            left = stretch.after(piece.end - stretch.first)
                    except _WorkerDied as error:
                        assert left is not None, "it is what has not come"
                        if worker.died_of(stretch):
                            deaths.count(left, error)
                        await waiting.finish(left if left.rows else None)
                        await self._restart(worker, deaths)
                    else:
                        await waiting.finish()
                await done.put(None)
            except Exception as error:
                await done.put(error)

        tasks = [asyncio.ensure_future(work(worker)) for worker in places]
        try:
            num_working = len(tasks)
            while num_working:
                found = await done.get()
                if isinstance(found, Exception):
                    raise found
                if found is None:
                    num_working -= 1
                else:
                    yield found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _restart(self, worker: _Worker, deaths: _Deaths) -> None:
        while True:
            try:
                await worker.restart()
            except _WorkerDied as error:
                deaths.count(None, error)
            else:
                deaths.forget_starts()
                return


class _Deaths:
    """Deaths of workers, by the rows that they died of."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[int, int] | None] = Counter()

    def count(self, stretch: Stretch | None, error: Exception) -> None:
        """A death with this stretch before the worker, or while it started."""
        place = None if stretch is None else (stretch.part, stretch.first)
        self._counts[place] += 1
        if self._counts[place] < _MAX_DEATHS:
            return
        what = (
            f"rows {stretch.rows[0].id!r} to {stretch.rows[-1].id!r}"
            if stretch is not None and stretch.rows
            else "starting again"
        )
        raise WorkerLost(
            f"{what} ended {_MAX_DEATHS} workers, perhaps because memory ran out; what is written "
            f"is kept. Ray says: {error}",
            limit=_MAX_DEATHS,
        )

    def forget_starts(self) -> None:
        self._counts.pop(None, None)


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
        f"{_MAX_DEATHS} processes ended while they loaded the model, perhaps as memory ran out. "
        f"Ray says: {died}",
        limit=_MAX_DEATHS,
    )


def _check_alike(infos: Sequence[WorkerInfo]) -> None:
    first = infos[0]
    for other in infos[1:]:
        for name in ("revision", "calibration", "dtype", "chunk_context", "device"):
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
