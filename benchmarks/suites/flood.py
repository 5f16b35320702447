"""The largest bodies that the server reads, from many callers at once: how long short texts take
meanwhile, and how much memory the server needs.

Callers stay and send again what was refused, or they leave. Short texts come over both protocols at
a steady rate, and for some seconds after the callers have gone. A latency counts from when its text
should have been sent.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from grpc import aio

from benchmarks.rows import Plan, Row, Target
from benchmarks.servers import Served, free_port, our_server
from benchmarks.workbench import Workbench
from service.benchmarks.load import ANSWERED, PROFILES
from service.benchmarks.load_client import HttpClient
from service.pb.lln.v1 import embeddings_pb2 as pb

CALLERS = (6, 60)
SECONDS, QUICK_SECONDS = 15.0, 5.0
AFTER_S = 5.0
"""Short texts go on for so long after the flood."""
SHORTS_PER_S = 10.0  # over each protocol
MOST_P99_S = Target("<=", 0.5)
_SAMPLE_EVERY_S = 0.1
_MIB = 2**20

AskShort = Callable[[str], Awaitable[None]]


@dataclass
class _Flooded:
    latencies: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)
    outcomes: dict[str, int] = field(default_factory=dict)


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    seconds = QUICK_SECONDS if plan.quick else SECONDS
    for protocol in ("http", "grpc"):
        for leaves in (False, True):
            for callers in CALLERS:
                grpc_port = free_port()
                with our_server(bench.threads, LLN_GRPC_PORT=str(grpc_port)) as served:
                    flood = {
                        "protocol": protocol,
                        "host": served.target.host,
                        "port": served.target.port,
                        "grpc_port": grpc_port,
                        "callers": callers,
                        "leaves": leaves,
                        "seconds": seconds,
                    }
                    idle_bytes = _resident_bytes(served.process.pid)
                    flooded = asyncio.run(_flood(served, flood))
                yield from _rows(flood, flooded, idle_bytes)


def _rows(flood: dict[str, Any], flooded: _Flooded, idle_bytes: int) -> Iterator[Row]:
    behaviour = "that leave" if flood["leaves"] else "that stay"
    case = f"{flood['callers']} callers over {flood['protocol']} {behaviour}"
    outcomes = ", ".join(f"{name} x {count}" for name, count in sorted(flooded.outcomes.items()))
    p50, p99 = np.quantile(flooded.latencies, (0.5, 0.99))
    yield Row(
        case=case,
        measure="p99 of short texts, s; times are p50 / p99 / longest",
        value=float(p99),
        target=MOST_P99_S,
        seconds={"p50": (float(p50),), "p99": (float(p99),), "max": (max(flooded.latencies),)},
        note=outcomes,
    )
    yield Row(
        case=case,
        measure="short texts that were not answered",
        value=len(flooded.failures),
        target=Target("<=", 0),
        seconds={},
        note="; ".join(flooded.failures[:5]),
    )
    yield Row(
        case=case,
        measure="peak of resident memory beyond that when idle, MiB",
        value=(max(flooded.resident_bytes) - idle_bytes) / _MIB,
        seconds={},
        note=f"idle {idle_bytes / _MIB:.0f}, at the end {flooded.resident_bytes[-1] / _MIB:.0f}",
    )


async def _flood(served: Served, flood: dict[str, Any]) -> _Flooded:
    flooded = _Flooded()
    address = f"{flood['host']}:{flood['grpc_port']}"
    http = HttpClient(served.target)
    async with aio.insecure_channel(address) as opened:
        channel: Any = opened  # the stubs want what grpc does not need
        embed = channel.unary_unary(
            "/lln.v1.Embeddings/Embed", request_serializer=pb.EmbedRequest.SerializeToString
        )

        async def ask_http(text: str) -> None:
            answer = await http.post("/v1/embeddings", json.dumps({"input": text}).encode())
            if answer.status != ANSWERED:
                raise ValueError(f"{answer.status} {answer.body.decode()}")

        async def ask_grpc(text: str) -> None:
            await embed(pb.EmbedRequest(input=[pb.Input(text=text)]))

        for ask in (ask_http, ask_grpc):
            await ask("the first text of its protocol")
        callers = await _start_callers(flood)
        sampling = asyncio.create_task(_sample_memory(served.process.pid, flooded))
        seconds = flood["seconds"] + AFTER_S
        await asyncio.gather(*(_ask_shorts(ask, seconds, flooded) for ask in (ask_http, ask_grpc)))
        sampling.cancel()
        printed, _ = await callers.communicate()
    http.close()
    flooded.outcomes = json.loads(printed)
    return flooded


async def _start_callers(flood: dict[str, Any]) -> Process:
    """Starts them, and returns once they are about to send."""
    command = (sys.executable, "-m", "benchmarks.flood_callers")
    callers = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    assert callers.stdin is not None, "it is a pipe"
    assert callers.stdout is not None, "it is a pipe"
    callers.stdin.write(json.dumps(flood).encode())
    callers.stdin.close()
    await callers.stdout.readline()
    return callers


async def _ask_shorts(ask: AskShort, seconds: float, flooded: _Flooded) -> None:
    loop = asyncio.get_running_loop()
    texts = PROFILES["short"].texts(seed=0)
    began_at = loop.time()

    async def ask_one(due_at: float) -> None:
        try:
            await ask(next(texts))
        except (OSError, EOFError, ValueError, aio.AioRpcError) as error:
            flooded.failures.append(f"{type(error).__name__}: {str(error)[:200]}")
        else:
            flooded.latencies.append(loop.time() - due_at)

    asking = []
    for number in range(round(seconds * SHORTS_PER_S)):
        due_at = began_at + number / SHORTS_PER_S
        await asyncio.sleep(due_at - loop.time())
        asking.append(asyncio.create_task(ask_one(due_at)))
    await asyncio.gather(*asking)


async def _sample_memory(pid: int, flooded: _Flooded) -> None:
    while True:
        flooded.resident_bytes.append(_resident_bytes(pid))
        await asyncio.sleep(_SAMPLE_EVERY_S)


def _resident_bytes(pid: int) -> int:
    """Bytes of the server and of the process that parses large bodies for it."""
    total = 0
    for process in (pid, *_children(pid)):
        try:
            pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        except (OSError, IndexError):  # it has just ended
            continue
        total += pages * os.sysconf("SC_PAGE_SIZE")
    return total


def _children(pid: int) -> Iterator[int]:
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        yield from map(int, tasks.read_text().split())
