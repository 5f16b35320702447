"""Load in a process of its own: a plan as JSON on standard input, a JSON line for each result.

    echo '{"host": "127.0.0.1", "port": 8000, "lengths": [16, 64], "seconds": 5,
           "shares": [0.5, 1.0]}' | python -m service.load

A server that measures itself starts it, so that the client does not share the server's loop. The
plan comes by standard input because it may hold a key, which a command line would show.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from service.load.client import Target
from service.load.open_loop import offer, saturate
from service.load.traffic import Traffic

_CLIENTS = 32


async def main(plan: Mapping[str, Any]) -> None:
    target = Target(
        host=plan["host"],
        port=plan["port"],
        headers=plan.get("headers", {}),
        tls=plan.get("tls", False),
    )
    traffic = Traffic.of_lengths(plan["lengths"], plan.get("model", "default"))
    seconds = plan["seconds"]
    capacity = await saturate(target, traffic, clients=_CLIENTS, seconds=seconds)
    if not capacity.answered_per_s:
        sys.exit("the server answered none of the requests")
    for seed, share in enumerate(plan["shares"]):
        rate = share * capacity.answered_per_s
        point = await offer(target, traffic, rate_per_s=rate, seconds=seconds, seed=seed)
        print(json.dumps({"share": share, **asdict(point)}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.load(sys.stdin)))
