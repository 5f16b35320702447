"""The Serve application, from settings and options.

`lln serve --replicas N` runs it from here. A Serve config names `build`, with the options as its
`args`; the settings come from the environment of the application (`env_vars`), as ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from engine.errors import InvalidInput, shown
from service.environment import load_settings
from service.replicas.front import GrpcFront
from service.replicas.options import GRPC, REPLICAS, ReplicaOptions
from service.replicas.replica import Replica
from service.settings import Settings

_DRAIN_MARGIN_S = 5.0
_STARTS = 3
"""Serve starts a replica that fails so often again before it gives up."""


def build(args: Mapping[str, Any]) -> serve.Application:
    known = {field.name for field in fields(ReplicaOptions)}
    if unknown := sorted(set(args) - known):
        raise InvalidInput(
            f"there is no option {shown(unknown[0])}; the options are {', '.join(sorted(known))}",
            code="unknown_option",
            param=unknown[0],
        )
    return application(load_settings(), ReplicaOptions(**args))


def application(settings: Settings, options: ReplicaOptions) -> serve.Application:
    # The engine refuses what is too much, with an error of ours. Serve would only queue it.
    room = settings.max_open_requests + settings.max_open_streams
    drain_s = settings.engine.drain_timeout_s
    front = serve.deployment(
        GrpcFront,
        name=GRPC,
        num_replicas=1,
        max_replicas_per_node=1,
        ray_actor_options={"num_cpus": 0},
        user_config={},
        graceful_shutdown_timeout_s=drain_s + _DRAIN_MARGIN_S,
    )
    replicas = serve.deployment(
        serve.ingress()(Replica),
        name=REPLICAS,
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": options.gpus},
        max_ongoing_requests=room,
        max_constructor_retry_count=_STARTS,
        graceful_shutdown_timeout_s=drain_s + _DRAIN_MARGIN_S,
        request_router_config=RequestRouterConfig(
            request_router_class=options.router,
            request_routing_stats_period_s=options.report_s,
        ),
        **_number(options),
    )
    return replicas.bind(_fitted(settings, options), _sharing(options), front.bind(settings))


def _number(options: ReplicaOptions) -> dict[str, Any]:
    if options.most == options.replicas:
        return {"num_replicas": options.replicas}
    policy = AutoscalingPolicy(
        policy_function="service.replicas.scaling:ScaleByTokens",
        policy_kwargs={"tokens_each": options.tokens_each},
    )
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=options.replicas,
            max_replicas=options.max_replicas,
            upscale_delay_s=options.scale_up_s,
            downscale_delay_s=options.scale_down_s,
            look_back_period_s=max(min(options.scale_up_s, options.scale_down_s), 1.0),
            policy=policy,
        )
    }


def _sharing(options: ReplicaOptions) -> int:
    """How many replicas may come to share the memory of a device."""
    if options.gpus:
        return max(1, int(1 / options.gpus))
    cores = (
        [node["Resources"].get("CPU", 0) for node in ray.nodes()] if ray.is_initialized() else []
    )
    fitting = max((int(number // options.cpus) for number in cores), default=options.most)
    return max(1, min(fitting, options.most))


def _fitted(settings: Settings, options: ReplicaOptions) -> Settings:
    """A replica has as many threads as cores."""
    if settings.engine.num_threads:
        return settings
    engine = settings.engine
    threads = max(1, round(options.cpus))
    return settings.model_copy(update={"engine": replace(engine, num_threads=threads)})
