"""Ranks on this machine, as processes that the first rank starts."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

from engine.ranks.launcher import EndedRank, Restarts
from engine.ranks.place import RankPlace

_HOST = "127.0.0.1"
_STOP_S = 5.0


def places_here(num_ranks: int, *, port: int | None = None, key: str = "") -> list[RankPlace]:
    """The places of ranks that are all on this machine; on a free port unless one is given."""
    if port is None:
        with socket.socket() as free:
            free.bind((_HOST, 0))
            port = free.getsockname()[1]
    return [
        RankPlace(
            rank=rank,
            num_ranks=num_ranks,
            local_rank=rank,
            num_local=num_ranks,
            address=_HOST,
            port=port,
            key=key,
        )
        for rank in range(num_ranks)
    ]


class LocalRanks:
    """The processes of ranks 1 and up."""

    door_host = _HOST

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._restarts = Restarts()
        self._stopping = threading.Lock()  # nothing may start once the others were stopped
        self._is_stopped = False

    def first_place(self) -> RankPlace:
        return places_here(self._num_ranks, key=secrets.token_hex(32))[0]

    def start(self, first: RankPlace) -> None:
        for rank in range(1, self._num_ranks):
            self._start(rank, first)

    def _start(self, rank: int, first: RankPlace) -> None:
        place = replace(first, rank=rank, local_rank=rank)
        with self._stopping:
            if self._is_stopped:
                return
            if rank in self._processes:
                _close_pipe(self._processes[rank])
            self._processes[rank] = subprocess.Popen(
                [sys.executable, "-m", "engine.ranks.worker"],
                env={**os.environ, **place.as_environment()},
                stdin=subprocess.PIPE,  # nothing is written: its end is that of this process
            )
            self._restarts.has_started(rank)

    def ended(self) -> Iterator[EndedRank]:
        for rank, process in list(self._processes.items()):
            if process.poll() is not None:
                yield EndedRank(rank, f"with status {process.returncode}")

    def restart(self, rank: int, first: RankPlace) -> None:
        if self._restarts.may_start(rank):
            self._start(rank, first)

    def process_ids(self) -> dict[int, int]:
        return {rank: process.pid for rank, process in list(self._processes.items())}

    def kill(self, rank: int) -> None:
        if (process := self._processes.get(rank)) is not None:
            process.kill()

    def stop(self) -> None:
        with self._stopping:
            self._is_stopped = True
        ends_at = time.monotonic() + _STOP_S
        for process in self._processes.values():
            try:
                process.wait(max(ends_at - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _close_pipe(process)
        self._processes.clear()


def _close_pipe(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None, "it was started with a pipe"
    process.stdin.close()
