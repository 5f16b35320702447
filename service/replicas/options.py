"""How many replicas, and what each gets of the cluster."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.errors import InvalidInput, shown

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
        for name in (*_WHOLE, *_OTHERS):
            value = getattr(self, name)
            if type(value) is not int and (name in _WHOLE or type(value) is not float):
                kind = "a whole number" if name in _WHOLE else "a number"
                raise _invalid(name, value, kind)
            if not 0 <= value < math.inf or (value == 0 and name not in _MAY_BE_0):
                raise _invalid(name, value, "at least 0" if name in _MAY_BE_0 else "above 0", 0)
        if self.max_replicas and self.max_replicas < self.replicas:
            least = self.replicas
            raise _invalid("max_replicas", self.max_replicas, f"at least replicas ({least})", least)

    @property
    def most(self) -> int:
        return max(self.replicas, self.max_replicas)


_WHOLE = ("replicas", "max_replicas", "cpus", "tokens_each")
_OTHERS = ("gpus", "report_s", "scale_up_s", "scale_down_s")
_MAY_BE_0 = ("max_replicas", "gpus", "scale_up_s", "scale_down_s")


def _invalid(name: str, value: object, wanted: str, limit: float | None = None) -> InvalidInput:
    """A config file may have a value of any type."""
    return InvalidInput(
        f"{name} must be {wanted}, got {shown(str(value))}",
        code="invalid_option",
        param=name,
        limit=limit,
        actual=str(value),
    )
