"""The start of `lln serve`. What may fail early fails first; then models load beside imports."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from engine.platform.process import loading
from service.ports import bind_port
from service.settings import Settings

if TYPE_CHECKING:
    from engine.model.embedding_model import EmbeddingModel
    from engine.ranks.launcher import RankLauncher


def start(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT. Under a launcher like torchrun the first rank serves, and the
    others read their parts of documents."""
    with loading():
        from engine.ranks.launcher import ElsewhereStarted
        from engine.ranks.place import RankPlace, check_devices, warn_of_few_cores
    place = RankPlace.from_environment(os.environ)
    if place is None or place.num_ranks == 1:
        check_devices(settings.engine, settings.engine.ranks)
        serve_here(settings)
    elif place.rank:
        from engine.ranks.worker import serve_rank

        serve_rank(place, join_s=settings.engine.rank_start_s)
    else:
        settings = settings.model_copy(update={"engine": place.fit(settings.engine)})
        check_devices(settings.engine, place.num_local)
        warn_of_few_cores(settings.engine, place.num_local)
        serve_here(settings, ElsewhereStarted(place))


def serve_here(settings: Settings, launcher: RankLauncher | None = None) -> None:
    """Serves in this process, which is the first rank where there are several. `launcher` starts
    the others, where this process does not start them itself."""
    listener = _take_ports(settings)
    with loading(), ThreadPoolExecutor(1, thread_name_prefix="lln-load") as pool:
        models = pool.submit(_load_models, settings)
        from service.server import serve
    serve(settings, models.result(), listener, launcher)


def _take_ports(settings: Settings) -> socket.socket:
    """The listener of HTTP. gRPC binds its port itself, later; a conflict shows now."""
    listener = bind_port(settings.http_host, settings.http_port)
    bind_port(settings.grpc_host, settings.grpc_port).close()
    return listener


def _load_models(settings: Settings) -> list[EmbeddingModel]:
    from engine.execution.cost_model import sizes_of
    from engine.model.embedding_model import load_models

    models = load_models(settings.models, config=settings.engine)
    for model in models:
        sizes_of(model.encoder)
    return models
