"""What only several replicas can run into."""

from __future__ import annotations

from engine.errors import EngineUnavailable, LLNError


class ReplicaLost(EngineUnavailable):
    """The replica that read a request ended before it had answered. Others go on."""

    code = "replica_lost"


def stopping() -> EngineUnavailable:
    return EngineUnavailable("the replicas start or stop")


class ReplicasFailed(LLNError):
    """The replicas did not start; the message is theirs."""

    code = "replicas_failed"
