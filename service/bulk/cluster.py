"""Connecting to Ray, and what is refused before any work starts."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.config import EngineConfig
from engine.errors import InvalidInput, LLNError
from service.readers.extra import need

_OBJECT_STORE_BYTES = 200 * 1024 * 1024
"""The object store of an embedded Ray: some forty parts on their way. More spill to the disk."""

_PURPOSES = {
    "worker": "embedding on a cluster",
    "replica": "serving with replicas",
    "rank": "reading with the ranks of a cluster",
}

_PROBE_TIMEOUT_S = 5.0
_ROUNDING = 1e-6


class ClusterUnreachable(LLNError):
    """No Ray cluster answers at the address, or its version of Ray differs."""

    code = "cluster_unreachable"


class NotEnoughResources(InvalidInput):
    """The cluster has fewer cores or GPUs than the workers need."""

    code = "not_enough_resources"


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Which cluster, and what of it."""

    address: str | None = None
    """HOST:PORT of a cluster's head; None starts a Ray on this machine, for this job."""

    workers: int | None = None
    """None takes as many as the cluster has room for."""

    worker_cpus: int = 1
    worker_gpus: float = 0

    what: Literal["worker", "replica", "rank"] = "worker"
    """What they are called, in errors and options."""

    @property
    def purpose(self) -> str:
        return _PURPOSES[self.what]

    @property
    def otherwise(self) -> str:
        return "embed without --ray" if self.what == "worker" else f"serve without --{self.what}s"


@contextmanager
def connected(options: ClusterOptions) -> Iterator[Any]:
    """The module `ray`, connected. Leaving ends an embedded Ray, and the job's actors elsewhere."""
    for name, value in _environment(options).items():
        os.environ.setdefault(name, value)
    ray = need("ray", options.purpose, extra="ray")
    logging.getLogger("ray").setLevel(logging.ERROR)
    folder = None if options.address else tempfile.mkdtemp(prefix="lln-ray-")
    with redirect_stdout(sys.stderr):  # where Ray would write what it has to tell
        try:
            _init(ray, options, folder)
            yield ray
        finally:
            ray.shutdown()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


def _environment(options: ClusterOptions) -> dict[str, str]:
    """What Ray reads when it is imported."""
    found = {
        "RAY_USAGE_STATS_ENABLED": "0",
        # GPUs stay hidden from workers that ask for none.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    }
    if options.address is None:
        # Workers that nobody asked for would take time from ours, at the start and while they wait.
        found |= {"RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0"}
    has_token = any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    if options.address and (has_token or (Path.home() / ".ray" / "auth_token").exists()):
        # `ray start` turns this on where there is a token, and a driver has to do as the cluster.
        found["RAY_AUTH_MODE"] = "token"
    return found


def _init(ray: Any, options: ClusterOptions, folder: str | None) -> None:
    quiet = {"configure_logging": False, "log_to_driver": False}
    if folder is not None:
        try:
            ray.init(
                address="local",
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                num_cpus=EngineConfig().compute_threads,
                _temp_dir=folder,
                **quiet,
            )
            _end_helpers(ray)
        except Exception as error:  # Ray raises the base class when a process of its own is late
            raise ClusterUnreachable(
                f"Ray did not start on this machine: {error} Run again when it is less busy, or "
                f"{options.otherwise}",
                code="ray_not_started",
            ) from error
        return
    assert options.address is not None, "there is a folder otherwise"
    _probe(options.address)
    try:
        ray.init(address=options.address, **quiet)
    except (ConnectionError, RuntimeError, OSError, ray.exceptions.RayError) as error:
        raise ClusterUnreachable(
            f"cannot join the Ray cluster at {options.address}: {str(error).strip()}. Run this on "
            "a node of the cluster, with its versions of Ray and Python, and with its token "
            "(RAY_AUTH_TOKEN) if it wants one",
            param="address",
            actual=options.address,
        ) from None


def _end_helpers(ray: Any) -> None:
    """Ends processes of an embedded Ray that do nothing for a job, and would take processor time
    from it as long as it runs. They pass on logs that nobody reads, ask for machines that there
    are none of, and report use, which is turned off."""
    with suppress(AttributeError):  # these names are Ray's own; under others the processes stay
        node = ray._private.worker._global_node
        node.kill_log_monitor(check_alive=False)
        node.kill_monitor(check_alive=False)
        node.kill_dashboard(check_alive=False)


def _probe(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not host or not port.isdecimal():
        raise InvalidInput(
            f"the address of a Ray cluster must be HOST:PORT, such as head:6379, got {address!r}",
            code="invalid_address",
            param="address",
            actual=address,
        )
    try:
        socket.create_connection((host, int(port)), _PROBE_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise ClusterUnreachable(
            f"no Ray cluster answers at {address} ({error}); start one with `ray start --head "
            f"--port {port}`, or use this machine alone: leave out --address",
            param="address",
            actual=address,
        ) from None


def workers_that_fit(ray: Any, options: ClusterOptions) -> int:
    """How many workers to start, or an error if the cluster cannot hold those asked for."""
    has = ray.cluster_resources()
    needs = {"CPU": options.worker_cpus, "GPU": options.worker_gpus}
    room = min(int(has.get(kind, 0) / need + _ROUNDING) for kind, need in needs.items() if need)
    wanted = options.workers or max(1, room)
    if room < wanted:
        kind = min((kind for kind in needs if needs[kind]), key=lambda k: has.get(k, 0) / needs[k])
        what = options.what
        raise NotEnoughResources(
            f"{wanted} {what if wanted == 1 else f'{what}s'} of {needs[kind]:g} {kind} "
            f"{'needs' if wanted == 1 else 'need'} {wanted * needs[kind]:g}, and "
            f"{'the cluster' if options.address else 'this machine'} has {has.get(kind, 0):g}: "
            f"lower --{what}s or --{what}-{kind.lower()}s, or add nodes",
            param=f"{what}s",
            limit=room,
            actual=wanted,
        )
    return wanted
