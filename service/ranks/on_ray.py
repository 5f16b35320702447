"""Ranks as tasks of a Ray cluster, each in a bundle of one placement group.

The first rank is this process. Its bundle holds its cores and its GPU on this node, so that no
other rank gets them.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from engine.errors import LLNError
from engine.ranks.launcher import EndedRank, Restarts
from engine.ranks.place import RankPlace
from service.bulk.cluster import NotEnoughResources
from service.ranks.options import RankOptions

_STOP_S = 5.0
_THIS_NODE = 0.001
"""Of a node's resource that bears its address, of which each node has 1: it binds the first bundle
to this node, and leaves room for those of other jobs."""


class RayRanks:
    """The tasks of ranks 1 and up. Leaving a cluster ends them all."""

    door_host = ""

    def __init__(self, ray: Any, options: RankOptions, *, start_s: float) -> None:
        """Raises NotEnoughResources if the cluster makes no room for the ranks in `start_s`."""
        self._ray, self._options, self._start_s = ray, options, start_s
        self._address: str = ray.util.get_node_ip_address()
        self._room = self._reserve()
        self._tasks: dict[int, Any] = {}
        self._restarts = Restarts()
        self._stopping = threading.Lock()  # nothing may start once the others were stopped
        self._is_stopped = False

    def own_gpu(self) -> int | None:
        """The number of the GPU that the cluster gives to the first rank, if it gives one."""
        if not self._options.gpus:
            return None
        numbers: list[int] = self._ray.get(self._task(0, _gpu_numbers).remote())
        return numbers[0]

    def first_place(self) -> RankPlace:
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        return RankPlace(
            rank=0,
            num_ranks=self._options.ranks,
            local_rank=0,  # Ray shows a task no GPU but its own
            num_local=1,
            address=self._address,
            port=port,
            key=secrets.token_hex(32),
        )

    def start(self, first: RankPlace) -> None:
        for rank in range(1, self._options.ranks):
            self._start(rank, first)

    def ended(self) -> Iterator[EndedRank]:
        tasks = dict(self._tasks)
        if not tasks:
            return
        done, _ = self._ray.wait(list(tasks.values()), num_returns=len(tasks), timeout=0)
        for rank, task in tasks.items():
            if task in done:
                yield EndedRank(rank, self._how_ended(task))

    def restart(self, rank: int, first: RankPlace) -> None:
        if self._restarts.may_start(rank):
            self._start(rank, first)

    def process_ids(self) -> dict[int, int]:
        return {}  # Ray knows tasks, wherever they run

    def kill(self, rank: int) -> None:
        if (task := self._tasks.get(rank)) is not None:
            self._ray.cancel(task, force=True)

    def stop(self) -> None:
        with self._stopping:
            self._is_stopped = True
        tasks = list(self._tasks.values())
        if tasks:
            _, left = self._ray.wait(tasks, num_returns=len(tasks), timeout=_STOP_S)
            for task in left:
                self._ray.cancel(task, force=True)
        self._tasks.clear()
        self._ray.util.remove_placement_group(self._room)

    def _start(self, rank: int, first: RankPlace) -> None:
        place = {**first.as_environment(), "RANK": str(rank)}
        with self._stopping:
            if not self._is_stopped:
                self._tasks[rank] = self._task(rank, _be_rank).remote(place)
                self._restarts.has_started(rank)

    def _how_ended(self, task: Any) -> str:
        try:
            problem: str = self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            return f"({type(error).__name__})"
        return f"({problem})" if problem else "by itself"

    def _reserve(self) -> Any:
        """A placement group with a bundle for each rank, spread over the nodes."""
        each = {"CPU": float(self._options.cpus), "GPU": float(self._options.gpus)}
        each = {kind: amount for kind, amount in each.items() if amount}
        others = [dict(each) for _ in range(1, self._options.ranks)]
        bundles = [{**each, f"node:{self._address}": _THIS_NODE}, *others]
        room = self._ray.util.placement_group(bundles, strategy="SPREAD")
        try:
            self._ray.get(room.ready(), timeout=self._start_s)
        except self._ray.exceptions.GetTimeoutError:
            self._ray.util.remove_placement_group(room)
            raise self._no_room() from None
        return room

    def _no_room(self) -> NotEnoughResources:
        options, has = self._options, self._ray.available_resources()
        kind = "GPU" if options.gpus else "CPU"
        each = options.gpus or options.cpus
        return NotEnoughResources(
            f"the cluster made no room for {options.ranks} ranks of {each} {kind} within "
            f"{self._start_s:g} s, the first of them on this node ({self._address}): "
            f"{has.get(kind, 0):g} {kind} are free; lower --ranks or --rank-{kind.lower()}s, add "
            "nodes, or end other jobs",
            param="ranks",
            limit=int(has.get(kind, 0) / each),
            actual=options.ranks,
        )

    def _task(self, rank: int, work: Any) -> Any:
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        return self._ray.remote(work).options(
            num_cpus=self._options.cpus,
            num_gpus=self._options.gpus,
            max_retries=0,  # a rank is started again here, less and less often
            scheduling_strategy=strategy(self._room, placement_group_bundle_index=rank),
        )


def _be_rank(place: Mapping[str, str]) -> str:
    """Reads parts of documents until the first rank stops; what kept it from it, or ""."""
    from engine.ranks.worker import serve_rank

    own = RankPlace.from_environment(place)
    assert own is not None, "the first rank states it"
    try:
        serve_rank(own)
    except LLNError as error:
        return error.message
    return ""


def _gpu_numbers() -> list[int]:
    import ray

    return [int(number) for number in ray.get_gpu_ids()]
