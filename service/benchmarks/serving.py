"""The serving suite: a load generator in a process of its own, turned on this very server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from service.benchmarks.suite import Bench, BenchmarkPlan, Row
from service.errors import NotAvailable

SHARES = (0.25, 0.5, 0.75, 1.0, 1.5)
"""Of the server's capacity, what is offered."""


async def serving_rows(bench: Bench, plan: BenchmarkPlan) -> AsyncGenerator[Row, None]:
    if bench.server is None:
        raise NotAvailable(
            "the suite serving measures a server that listens, and this one does not",
            param="suite",
            actual=plan.suite,
        )
    server = bench.server
    if server.needs_certificate:
        raise NotAvailable(
            "the suite serving has no client's certificate, which LLN_TLS_CLIENT_CA_FILE asks for",
            param="suite",
            actual=plan.suite,
        )
    load = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "service.load"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    wanted = {
        "host": server.host,
        "port": server.port,
        "headers": dict(server.headers),
        "tls": server.tls,
        "model": plan.model,
        "lengths": plan.lengths,
        "seconds": plan.seconds,
        "shares": SHARES,
    }
    try:
        async for row in _rows(load, json.dumps(wanted).encode()):
            yield row
    finally:
        if load.returncode is None:
            load.kill()
        await load.wait()


async def _rows(load: asyncio.subprocess.Process, plan: bytes) -> AsyncIterator[dict[str, Any]]:
    assert load.stdin is not None  # all three are pipes
    assert load.stdout is not None
    assert load.stderr is not None
    load.stdin.write(plan)
    load.stdin.close()
    async for line in load.stdout:
        yield json.loads(line)
    if await load.wait():
        reason = (await load.stderr.read()).decode(errors="replace").strip()
        raise NotAvailable(f"the load could not be offered: {reason.splitlines()[-1][:200]}")
