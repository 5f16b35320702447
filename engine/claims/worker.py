"""Claims checked in a process of their own, which gives way to everything else.

They are seconds of small matrices to Python and torch: on a thread of the server they would hold
its interpreter lock, and their single-threaded LAPACK would change torch's threads under the model.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict

import torch

from engine.claims.base import Claim, ClaimRow, Material
from engine.claims.run import claim_rows, find_claims
from engine.errors import DeviceFailure

_LOWEST_PRIORITY = 19
_LONGEST_LINE = 2**24


async def checked_apart(claims: Sequence[Claim], material: Material) -> AsyncIterator[ClaimRow]:
    """Each claim's row as soon as it is there. Who stops asking stops the work."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engine.claims.worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LONGEST_LINE,
    )
    assert child.stdin is not None, "a pipe"
    assert child.stdout is not None, "a pipe"
    try:
        child.stdin.write(pickle.dumps(([claim.id for claim in claims], material)))
        child.stdin.write_eof()
        async for line in child.stdout:
            yield ClaimRow(**json.loads(line))
        if await child.wait():
            raise DeviceFailure(f"The process that checks claims ended with {child.returncode}.")
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


def main() -> None:
    """Reads what to check from standard input, writes a line of JSON a row."""
    os.nice(_LOWEST_PRIORITY)
    torch.set_num_threads(1)
    ids, material = pickle.load(sys.stdin.buffer)  # from the parent process, nobody else
    for row in claim_rows(find_claims(ids), material):
        print(json.dumps(asdict(row), allow_nan=False), flush=True)


if __name__ == "__main__":
    main()
