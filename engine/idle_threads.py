"""How long torch's idle threads on a CPU spin before they sleep."""

from __future__ import annotations

import os

SPIN_COUNT = "5000"
"""Some tens of microseconds: enough to bridge the gaps between operations."""


def let_idle_threads_sleep() -> None:
    """Set before torch is loaded, unless the user has decided.

    GNU OpenMP spins for milliseconds by default. Alone on a machine that gains nothing for a long
    batch and some percent for a single short text; beside another busy process it is a disaster,
    since each thread burns the time that the one it waits for needs: two engines on two cores
    slowed each other down more than twentyfold, and by their fair half with this.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
