"""Calls like one before: their arguments are in order, and their launches are prepared.

The host reads no number of a GPU's tensors. So what its checks find, and which launches a call
takes, depends on shapes, strides, dtypes and devices alone, and a call that agrees in all of them
with one before needs neither checks nor a form of its own. To ask tensors for these once takes the
host a third of the time of the checks.
"""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor

from kernels.attention.gpu import constants as compiled_for
from kernels.attention.gpu import tiles
from kernels.attention.gpu.forward_form import FormLaunches
from kernels.attention.gpu.launch import ABSENT, Branches

KEPT_CALLS = 4096
"""Batches of different numbers of sequences count as different calls."""


class KnownCalls:
    """Calls of LLN+Diag that were checked, by `key_of`."""

    def __init__(self) -> None:
        self._launches: dict[Hashable, FormLaunches] = {}

    def find(self, key: Hashable) -> FormLaunches | None:
        return self._launches.get(key)

    def learn(self, key: Hashable, launches: FormLaunches) -> None:
        if len(self._launches) >= KEPT_CALLS:
            self._launches.clear()
        self._launches[key] = launches

    def cache_clear(self) -> None:
        """Where tile sizes have changed."""
        self._launches.clear()


KNOWN_CALLS = KnownCalls()
compiled_for.KEPT.append(KNOWN_CALLS)


def key_of(q: Tensor, k: Tensor, v: Tensor, branches: Branches) -> Hashable:
    """All that a call depends on but for the number of its rows, in which q, k and v agree."""
    cu_seqlens, alpha, beta, mix, gate, mix_scale, block_size, num_sinks, *_ = branches
    _, num_heads, head_dim = q.shape
    parameters = (
        *(cu_seqlens, alpha, beta, mix, gate, mix_scale),
        *(*(branches.q_map or ABSENT), *(branches.k_map or ABSENT)),
    )
    return (
        *(num_heads, head_dim, block_size, num_sinks, tiles.SHORT_TOKENS),
        *[(x.dtype, x.device, x.stride()) for x in (q, k, v)],
        *[None if x is None else (x.shape, x.dtype, x.device, x.stride()) for x in parameters],
    )
