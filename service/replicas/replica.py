"""One replica: the server of `lln serve` without its HTTP listener, inside a Serve actor."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.config import EngineConfig
from engine.errors import EngineUnavailable
from engine.platform.process import freeze_loaded_objects, prepare_process
from service.replica import LONGEST_NAME, host_name
from service.replicas.ledger import LONG_FROM, NEVER
from service.replicas.scaling import METRIC
from service.settings import MAX_INT32, Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from engine.async_engine import AsyncEngine


class Replica:
    """Serve makes it, gives its application the requests, and asks it the rest."""

    def __init__(self, settings: Settings, sharing: int = 1, grpc: object = None) -> None:
        """Loads the models. `sharing` replicas share a device's memory; `grpc` only makes Serve
        start what listens for gRPC beside this."""
        prepare_process()  # before torch is imported
        from ray import serve
        from ray.util import get_node_ip_address

        from service.app import create_app, load_engine
        from service.logs import set_up_logs
        from service.metrics import Metrics
        from service.tracing import tracing_of

        set_up_logs(settings)
        id = serve.get_replica_context().replica_id.unique_id
        settings = settings.model_copy(
            update={
                "replica": f"{host_name()[: LONGEST_NAME - len(id) - 1]}-{id}",
                "grpc_host": get_node_ip_address(),
                "grpc_port": 0,
                # All callers come over one connection. Whoever listens for them limits theirs.
                "max_streams_per_connection": MAX_INT32,
                "engine": _with_a_part_of_memory(settings.engine, sharing),
                # Whoever listens for callers ends TLS.
                **dict.fromkeys(("tls_cert_file", "tls_key_file", "tls_client_ca_file")),
            }
        )
        metrics = Metrics(tracing_of(settings))
        engine = load_engine(settings, metrics)
        self._app = create_app(settings, engine, metrics)
        self._settings = settings
        self._last = {"short": 0, "long": 0, "at": 0.0}
        freeze_loaded_objects()

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._app

    @property
    def _engine(self) -> AsyncEngine:
        engine: AsyncEngine = self._app.state.engine
        return engine

    async def check_health(self) -> None:
        """Serve replaces a replica whose device is stuck or dead."""
        if not self._engine.ready:
            raise EngineUnavailable("the engine of this replica is dead, stuck or stopping")

    async def record_routing_stats(self) -> dict[str, Any]:
        """What routers read. Serve tells them all of each change: an idle replica has none."""
        outstanding = self._engine.outstanding
        if outstanding.tokens or self._last["short"] or self._last["long"]:
            self._last = {**outstanding._asdict(), "at": time.time()}
        return {**self._last, "keeps": self._app.state.batches.is_open}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        return {METRIC: float(self._engine.outstanding.tokens)}

    async def record_replica_metadata(self) -> dict[str, Any]:
        models, config = self._engine.models.values(), self._engine.config
        device = next(iter(models)).device.partition(":")[0]
        tiled_from = config.sweep_tokens_on(device)
        if any("softmax" in model.attention for model in models):
            tiled_from = NEVER  # routers do not know which model a request is for
        return {
            "name": self._settings.replica_name,
            "address": self._app.state.grpc_address,
            "keeps": self._app.state.batches.is_open,
            "long_from": LONG_FROM if device == "cpu" else config.batch_tokens_on(device),
            "tiled_from": tiled_from,
        }

    async def ping(self) -> str:
        return self._settings.replica_name


def _with_a_part_of_memory(config: EngineConfig, sharing: int) -> EngineConfig:
    """Each replica alone would take half of what is free."""
    from engine.platform.device import choose_placement
    from engine.platform.memory import free_bytes

    if sharing == 1 or config.max_sweep_bytes:
        return config
    placement = choose_placement(config.device, config.dtype, config.fallback_dtype)
    return replace(config, max_sweep_bytes=free_bytes(placement.device) // (2 * sharing))
