"""The ranks of one generation, over torch.distributed.

A group is torch's, used through its own object and not through the process's default group. So a
group that lost a rank can be given up and another formed, and a program's own default group stays
as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    ProcessGroupGloo,
    Store,
    Work,
)

from engine.errors import RankLost

FORM_S = 15.0
"""How long a group may take to form. Its ranks say nothing meanwhile."""

_FOREVER = timedelta(days=7)
"""Ranks that are lost are noticed on their channels. Slow ones may take as long as they need."""


class Group:
    """This process among the ranks of one generation."""

    def __init__(self, store: Store, generation: int, rank: int, num_ranks: int) -> None:
        """Returns when all ranks have joined. Raises RuntimeError if they do not in time."""
        self.rank, self.num_ranks = rank, num_ranks
        self.bytes_sent = 0
        self._torch_group: Any = ProcessGroupGloo(
            PrefixStore(str(generation), store), rank, num_ranks, timedelta(seconds=FORM_S)
        )
        self._torch_group.set_timeout(_FOREVER)

    def all_gather(self, part: Tensor) -> GroupPending:
        torch_group = self._live()
        on_host = part.contiguous().cpu()
        whole = on_host.new_empty(self.num_ranks, *part.shape)
        self._count(on_host, self.num_ranks - 1)
        work = torch_group.allgather([list(whole.unbind())], [on_host])
        return GroupPending(work, lambda: whole.to(part.device))

    def gather(self, part: Tensor) -> GroupPending:
        torch_group = self._live()
        on_host = part.contiguous().cpu()
        is_first = self.rank == 0
        whole = on_host.new_empty(self.num_ranks if is_first else 0, *part.shape)
        self._count(on_host, 0 if is_first else 1)
        outputs = list(whole.unbind()) if is_first else []
        work = torch_group.gather(outputs, on_host, 0)
        return GroupPending(work, lambda: whole.to(part.device))

    def abort(self) -> None:
        """Give up what is under way. The ranks that wait for this one notice.

        Freeing torch's group waits until its last exchange has ended, which may take until the
        other ranks give up too. So a thread does it.
        """
        torch_group, self._torch_group = self._torch_group, None
        if torch_group is not None:
            torch_group.abort()
            held = [torch_group]
            del torch_group
            threading.Thread(target=held.clear, name="lln-ranks-free", daemon=True).start()

    def _live(self) -> Any:
        if self._torch_group is None:
            raise RankLost("The ranks of this document are no longer together.", retry_after_s=1.0)
        return self._torch_group

    def _count(self, part: Tensor, num_peers: int) -> None:
        self.bytes_sent += part.numel() * part.element_size() * num_peers


class GroupPending:
    """An exchange that torch.distributed carries out."""

    def __init__(self, work: Work, whole: Callable[[], Tensor]) -> None:
        self._work = work
        self._whole = whole

    def poll(self) -> Tensor | None:
        if not self._work.is_completed():
            return None
        try:
            self._work.wait()
        except RuntimeError as error:
            raise RankLost("The connection to another rank was lost.", retry_after_s=1.0) from error
        with torch.inference_mode():
            return self._whole()
