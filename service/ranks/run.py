"""`lln serve --ranks N --address HOST:PORT`: a cluster reads long documents along."""

from __future__ import annotations

import signal
from dataclasses import replace

from engine.config import EngineConfig
from engine.errors import InvalidInput
from service.bulk.cluster import ClusterOptions, connected, workers_that_fit
from service.ranks.on_ray import RayRanks
from service.ranks.options import RankOptions
from service.settings import Settings
from service.start import serve_here


def serve_with_ranks(settings: Settings, options: RankOptions, *, address: str) -> None:
    """Serves until SIGTERM or SIGINT. The other ranks end with it."""
    cluster = ClusterOptions(
        address=address,
        workers=options.ranks,
        worker_cpus=options.cpus,
        worker_gpus=options.gpus,
        what="rank",
    )
    at_terminate = signal.getsignal(signal.SIGTERM)
    with connected(cluster) as ray:
        signal.signal(signal.SIGTERM, at_terminate)  # Ray takes it
        workers_that_fit(ray, cluster)
        ranks = RayRanks(ray, options, start_s=settings.engine.rank_start_s)
        engine = fitted(settings.engine, options, ranks.own_gpu())
        serve_here(settings.model_copy(update={"engine": engine}), ranks)


def fitted(config: EngineConfig, options: RankOptions, gpu: int | None) -> EngineConfig:
    """The configuration of all ranks. `gpu` is the first rank's; the others see theirs alone."""
    if config.ranks not in (1, options.ranks):
        raise InvalidInput(
            f"LLN_ENGINE__RANKS is {config.ranks}, and --ranks {options.ranks}: leave one out",
            code="wrong_num_ranks",
            param="ranks",
            limit=options.ranks,
            actual=config.ranks,
        )
    device = config.device if gpu is None or config.device == "cpu" else f"cuda:{gpu}"
    threads = config.num_threads or options.cpus
    return replace(config, ranks=options.ranks, num_threads=threads, device=device)
