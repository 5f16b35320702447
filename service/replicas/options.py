"""How many replicas, and what each gets of the cluster."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import InvalidInput

APPLICATION = "lln"
REPLICAS = "replicas"
GRPC = "grpc"


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions:
    """Checked when made, as the options of `lln serve` and the `args` of a Serve config."""

    replicas: int = 2
    """How many at least."""

    max_replicas: int = 0
    """With more of them than `replicas`, their number follows the tokens that wait."""

    cpus: int = 1
    """Cores of a replica, which are its threads too."""

    gpus: float = 0

    tokens_each: int = 65_536
    """Replicas are added while more tokens wait than this for each."""

    scale_up_s: float = 15
    scale_down_s: float = 300
    """For so long it must have been so before replicas are added or given up."""

    report_s: float = 0.5
    """How often replicas tell routers what they have still to read."""

    router: str = "service.replicas.router:TokenRouter"

    def __post_init__(self) -> None:
        for name in ("replicas", "cpus", "tokens_each", "report_s"):
            if getattr(self, name) <= 0:
                raise _invalid(name, getattr(self, name), "above 0", 0)
        if self.max_replicas and self.max_replicas < self.replicas:
            raise _invalid("max_replicas", self.max_replicas, "at least replicas", self.replicas)

    @property
    def most(self) -> int:
        return max(self.replicas, self.max_replicas)


def _invalid(name: str, value: float, wanted: str, limit: float) -> InvalidInput:
    return InvalidInput(
        f"{name} must be {wanted} ({limit:g}), got {value:g}",
        code="invalid_option",
        param=name,
        limit=limit,
        actual=value,
    )
