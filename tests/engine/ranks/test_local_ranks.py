"""The processes of ranks on this machine, when the first rank is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

FIRST_RANK = """
import time
from engine.ranks.local import LocalRanks
ranks = LocalRanks(2)
ranks.start(ranks.first_place())  # which opens no store, so the other one waits
print(ranks.process_ids()[1], flush=True)
time.sleep(600)
"""


@pytest.mark.long
def test_a_rank_that_has_not_joined_ends_with_the_first_one() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FIRST_RANK], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        other = int(first.stdout.readline())
        first.kill()
        try:
            # It has the same outputs, which end with the last process that holds them.
            _, told = first.communicate(timeout=30)
        finally:
            with suppress(ProcessLookupError):
                os.kill(other, signal.SIGKILL)
    assert told == b"rank 1 ends: the first rank is gone\n"
