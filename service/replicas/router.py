"""Serve's hook for routing: each proxy and each handle has a router of its own.

Serve copies this module by value to where routers run, so what must be found again there lies in
others (`ledgers.py`).
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from service.replicas.ledger import Ledger, Report
from service.replicas.ledgers import add_ledger
from service.replicas.price import Price, price_of_scope


class TokenRouter(RequestRouter):  # type: ignore[misc]  # Ray is not read by mypy
    """Routes by outstanding tokens."""

    def initialize_state(self, **kwargs: Any) -> None:
        self._ledger: Ledger = add_ledger()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._ledger.update(
            {
                replica.replica_id.unique_id: Report.of(
                    replica.replica_metadata, replica.routing_stats or {}
                )
                for replica in replicas
            }
        )

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        if pending_request is None:
            return [list(candidate_replicas)]
        price = _price_of(pending_request.args)
        ids = self._ledger.order(price, by_id)
        if ids:
            self._charge(pending_request, ids[0], price)
        # Serve takes the first that has room. Within a rank it would choose by count.
        return [[by_id[id]] for id in ids] or [list(candidate_replicas)]

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        self._ledger.answered(internal_request_id, replica_id.unique_id)

    def _charge(self, pending: PendingRequest, first: str, price: Price) -> None:
        """Counts the request at once, so that the next one knows of it."""
        request = pending.metadata.internal_request_id
        self._ledger.send(request, first, price)

        def settle(chosen: asyncio.Future[RunningReplica]) -> None:
            if chosen.cancelled():
                self._ledger.answered(request)
            elif (taken := chosen.result().replica_id.unique_id) != first:
                self._ledger.send(request, taken, price)

        pending.future.add_done_callback(settle)


def _price_of(arguments: Sequence[Any]) -> Price:
    """Serve's proxies pickle the scope of HTTP requests, in this process; handles of ours send no
    texts."""
    if len(arguments) == 1 and isinstance(arguments[0], bytes):
        return price_of_scope(pickle.loads(arguments[0]).asgi_scope)
    return Price()
