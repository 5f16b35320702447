"""Two replicas whose routing policy can be changed while they serve.

    BENCHMARK_ROUTING=FILE python -m benchmarks.replicas.routing

The file holds one of POLICIES, so all policies are measured with the same processes.
"""

from __future__ import annotations

import os
from pathlib import Path

from ray.serve.request_router import PendingRequest, RunningReplica

from benchmarks.replicas.policies import BY_REQUESTS, BY_TOKENS, VARIABLE
from service.environment import load_settings
from service.logs import set_up_logs
from service.replicas.options import ReplicaOptions
from service.replicas.router import TokenRouter
from service.replicas.run import serve_replicas


class SwitchedRouter(TokenRouter):
    turn = 0

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        policy = Path(os.environ[VARIABLE]).read_text()
        if policy == BY_TOKENS:
            return await super().choose_replicas(candidate_replicas, pending_request)
        if policy == BY_REQUESTS:  # what Serve does by itself where there are two
            return [list(candidate_replicas)]
        ordered = sorted(candidate_replicas, key=lambda one: str(one.replica_id.unique_id))
        self.turn = (self.turn + 1) % len(ordered)
        return [[one] for one in ordered[self.turn :] + ordered[: self.turn]]


def main() -> None:
    settings = load_settings()
    set_up_logs(settings)
    router = "benchmarks.replicas.routing:SwitchedRouter"
    serve_replicas(settings, ReplicaOptions(replicas=2, router=router))


if __name__ == "__main__":
    main()
