"""`lln serve --replicas N`: connects to Ray or starts one, checks, serves, and stops it all."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from engine.errors import CheckpointError, LLNError
from service.bulk.cluster import ClusterOptions, ClusterUnreachable, connected, workers_that_fit
from service.ports import bind_port
from service.replicas.errors import ReplicasFailed
from service.replicas.options import APPLICATION, GRPC, REPLICAS, ReplicaOptions
from service.replicas.proxy import CALLBACK, CALLBACK_PATH
from service.settings import Settings, SettingsError

log = logging.getLogger(__name__)

_CHECK_S = 60.0
_LOOK_EVERY_S = 0.2


def serve_replicas(
    settings: Settings, options: ReplicaOptions, *, address: str | None = None
) -> None:
    """Serves until SIGTERM, SIGINT or SIGHUP, then answers the requests in flight and returns."""
    if settings.tls_client_ca_file is not None:
        raise SettingsError(
            "LLN_TLS_CLIENT_CA_FILE does not go with --replicas: over HTTP, Ray Serve does not ask "
            "clients for certificates; put a proxy that does in front, or require API keys"
        )
    for host, port in (
        (settings.http_host, settings.http_port),
        (settings.grpc_host, settings.grpc_port),
    ):
        bind_port(host, port).close()
    os.environ.setdefault(CALLBACK, CALLBACK_PATH)
    os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
    cluster = ClusterOptions(
        address=address,
        workers=options.replicas,
        worker_cpus=options.cpus,
        worker_gpus=options.gpus,
        what="replica",
    )
    # Ray takes the signals when it starts, so ours come after.
    with connected(cluster) as ray, _stop_signals() as stop:
        workers_that_fit(ray, cluster)
        _check_models(ray, settings.models)
        _serve(ray, settings, options, stop)


def _serve(ray: Any, settings: Settings, options: ReplicaOptions, stop: _Stop) -> None:
    from ray import serve

    from service.replicas.application import application

    serve.start(proxy_location="EveryNode", http_options=_http_options(settings))
    try:
        _run(serve, application(settings, options))
        fields = {
            "http": f"http{'s' if settings.tls else ''}://{settings.http_host}:{settings.http_port}",
            "grpc": f"{settings.grpc_host}:{settings.grpc_port}",
            "models": list(settings.models),
            "replicas": options.replicas,
        }
        log.info("serving", extra={"fields": fields})
        stop.wait()
        log.info("stopping")
        try:
            _drain(serve)
        except SystemExit:  # the second signal
            _end_replicas(ray)
            raise
    finally:
        serve.shutdown()
    log.info("stopped")


def _drain(serve: Any) -> None:
    """Waits until the replicas have answered the requests in flight. Each has its own deadline.

    `shutdown` alone would end Serve's proxies at once, and the connections of all callers.
    """
    serve.delete(APPLICATION, _blocking=False)
    while APPLICATION in serve.status().applications:
        time.sleep(_LOOK_EVERY_S)


def _end_replicas(ray: Any) -> None:
    """Ends the requests in flight too. Serve itself has nothing for it, and its actors would wait
    for them until their deadline."""
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["name"].startswith(f"SERVE_REPLICA::{APPLICATION}#"):
            with suppress(ValueError):  # it has ended
                ray.kill(ray.get_actor(**actor))


def _http_options(settings: Settings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "host": settings.http_host,
        "port": settings.http_port,
        "request_timeout_s": settings.request_timeout_s,
        "keep_alive_timeout_s": 75,
    }
    if settings.tls is not None:
        options["ssl_certfile"] = str(settings.tls_cert_file)
        options["ssl_keyfile"] = str(settings.tls_key_file)
    return options


def _run(serve: Any, application: Any) -> None:
    try:
        serve.run(application, name=APPLICATION, route_prefix="/")
    except RuntimeError as error:
        raise ReplicasFailed(f"the replicas did not start: {_reason(serve, error)}") from error


def _reason(serve: Any, error: Exception) -> str:
    """The last line of the traceback that a deployment reports, which is the error's own."""
    deployments = serve.status().applications[APPLICATION].deployments
    for name in (REPLICAS, GRPC):
        lines = [line.strip() for line in deployments[name].message.splitlines() if line.strip()]
        if deployments[name].status != "HEALTHY" and lines:
            return str(lines[-1])
    return str(error)


def _check_models(ray: Any, models: Sequence[str]) -> None:
    """Looks for the models on every node, before a replica is started there."""
    check = ray.remote(num_cpus=0, max_retries=0)(_missing_model)
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    nodes = [node for node in ray.nodes() if node["Alive"]]
    looking = [
        check.options(scheduling_strategy=strategy(node["NodeID"], soft=False)).remote(models)
        for node in nodes
    ]
    try:
        answers = ray.get(looking, timeout=_CHECK_S)
    except TimeoutError:
        raise ClusterUnreachable(
            f"a node did not say within {_CHECK_S:g} s whether it has the models; run again when "
            "the nodes are less busy",
            limit=_CHECK_S,
        ) from None
    for node, found in zip(nodes, answers, strict=True):
        if found is not None:
            raise CheckpointError(f"{found} (looked for on {node['NodeManagerHostname']})")


def _missing_model(models: Sequence[str]) -> str | None:
    from engine.checkpoint.locate import locate

    for model in models:
        try:
            locate(model)
        except LLNError as error:
            return error.message
    return None


class _Stop:
    """SIGTERM and SIGINT: they interrupt until all serves, then ask for a stop."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._serves = False

    def wait(self) -> None:
        self._serves = True
        self._asked.wait()

    def handle(self, number: int, _: FrameType | None) -> None:
        if not self._serves or self._asked.is_set():
            raise SystemExit(128 + number)
        self._asked.set()


@contextmanager
def _stop_signals() -> Iterator[_Stop]:
    stop = _Stop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, stop.handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
