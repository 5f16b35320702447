"""A rank's place among the others, as torchrun and other launchers state it in the environment."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Self

import torch
from torch.distributed import (  # type: ignore[attr-defined]
    DistError,
    PrefixStore,
    Store,
    TCPStore,
)

from engine.config import EngineConfig
from engine.errors import EngineUnavailable, InvalidInput
from engine.platform.process import usable_cores

logger = logging.getLogger(__name__)

_STATED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class RankPlace:
    """Which rank this process is, of how many, and where the first rank is found."""

    rank: int
    num_ranks: int
    local_rank: int  # on its machine: the number of its GPU
    num_local: int
    address: str
    port: int
    has_agent: bool = False
    """Whether torchrun itself listens there, and not the first rank."""
    attempt: str = "0"
    key: str = field(default="", repr=False)
    """What the ranks prove to each other that they know. Empty: rank 0 draws one and leaves it
    where anyone who reaches the store can read it."""

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> Self | None:
        """The place that a launcher states; None if there is no launcher."""
        if not all(variables.get(name) for name in _STATED):
            return None
        rank = _number("RANK", variables["RANK"])
        num_ranks = _number("WORLD_SIZE", variables["WORLD_SIZE"], least=1)
        if rank >= num_ranks:
            raise InvalidInput(
                f"RANK must be 0 to {num_ranks - 1} where WORLD_SIZE is {num_ranks}, got {rank}",
                code="invalid_rank",
                param="RANK",
                limit=num_ranks - 1,
                actual=rank,
            )
        return cls(
            rank=rank,
            num_ranks=num_ranks,
            local_rank=_number("LOCAL_RANK", variables.get("LOCAL_RANK", "0")),
            num_local=_number("LOCAL_WORLD_SIZE", variables.get("LOCAL_WORLD_SIZE", "1"), least=1),
            address=variables["MASTER_ADDR"],
            port=_number("MASTER_PORT", variables["MASTER_PORT"], most=65_535),
            has_agent=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            attempt=variables.get("TORCHELASTIC_RESTART_COUNT", "0"),
            key=variables.get("RANK_KEY", ""),
        )

    def fit(self, config: EngineConfig) -> EngineConfig:
        """The configuration of an engine in this place. Raises InvalidInput if it asks for another
        number of ranks than the launcher started."""
        if config.ranks not in (1, self.num_ranks):
            raise InvalidInput(
                f"ranks is {config.ranks}, and the launcher started {self.num_ranks} (WORLD_SIZE)",
                code="wrong_num_ranks",
                param="ranks",
                limit=self.num_ranks,
                actual=config.ranks,
            )
        threads = config.num_threads or max(1, usable_cores() // self.num_local)
        return replace(config, ranks=self.num_ranks, num_threads=threads)

    def as_environment(self) -> dict[str, str]:
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.num_ranks),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.num_local),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "RANK_KEY": self.key,
        }

    def open_store(self, timeout_s: float) -> Store:
        """The store where ranks find each other. Raises EngineUnavailable if it cannot be
        reached."""
        is_first = self.rank == 0 and not self.has_agent
        try:
            store = TCPStore(
                self.address,
                self.port,
                is_master=is_first,
                timeout=timedelta(seconds=timeout_s),
                wait_for_workers=False,
            )
        except (DistError, RuntimeError, OSError, ValueError) as error:
            does = "listen" if is_first else "reach the first rank"
            raise EngineUnavailable(
                f"rank {self.rank} cannot {does} at {self.address}:{self.port} "
                f"(MASTER_ADDR and MASTER_PORT) within {timeout_s:g} s",
                code="rank_unreachable",
                param="MASTER_ADDR",
                limit=timeout_s,
                actual=f"{self.address}:{self.port}",
            ) from error
        return PrefixStore(f"lln/{self.attempt}", store)


def check_devices(config: EngineConfig, num_ranks: int, *, num_gpus: int | None = None) -> None:
    """Raises InvalidInput if several ranks are more than the GPUs of this machine. One alone is
    told as its models load."""
    if num_gpus is None:
        num_gpus = torch.cuda.device_count()
    if _wants_gpus(config, num_gpus) and num_ranks > max(1, num_gpus):
        raise InvalidInput(
            f"{num_ranks} ranks are to run on this machine, which has {num_gpus} GPUs: start some "
            "on other machines with torchrun, or ask for fewer",
            code="too_few_devices",
            param="ranks",
            limit=num_gpus,
            actual=num_ranks,
        )


def warn_of_few_cores(config: EngineConfig, num_ranks: int) -> None:
    """Says so if ranks on CPUs are more than the cores of this machine. Call it once."""
    cores = usable_cores()
    if not _wants_gpus(config, torch.cuda.device_count()) and num_ranks > cores:
        logger.warning(
            "more ranks (%d) than usable cores (%d) read no faster than one for each core",
            *(num_ranks, cores),
        )


def _wants_gpus(config: EngineConfig, num_gpus: int) -> bool:
    return config.device.startswith("cuda") or (config.device == "auto" and num_gpus > 0)


def _number(name: str, value: str, *, least: int = 0, most: int = 2**31 - 1) -> int:
    try:
        number = int(value)
    except ValueError:
        raise InvalidInput(
            f"{name} must be a whole number, got {value!r}",
            code="invalid_rank",
            param=name,
            actual=value,
        ) from None
    if not least <= number <= most:
        raise InvalidInput(
            f"{name} must be {least} to {most}, got {number}",
            code="invalid_rank",
            param=name,
            limit=least if number < least else most,
            actual=number,
        )
    return number
