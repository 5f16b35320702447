"""`lln serve` and `lln settings`."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import TYPE_CHECKING

from engine.errors import InvalidInput
from service.cli.common import (
    Chosen,
    Commands,
    add_command,
    add_json,
    positive_gpus,
    positive_number,
    print_json,
    print_table,
)
from service.environment import load_settings, setting_rows
from service.logs import set_up_logs
from service.settings import Settings

if TYPE_CHECKING:
    from service.ranks.options import RankOptions
    from service.replicas.options import ReplicaOptions

_OPTIONS = {
    "http_host": "ADDRESS",
    "http_port": "PORT",
    "grpc_host": "ADDRESS",
    "grpc_port": "PORT",
    "models": "NAME,NAME,...",
}


def add_serve(commands: Commands) -> None:
    command = add_command(commands, "serve", _serve, "serve HTTP and gRPC until SIGTERM or Ctrl-C")
    for name, metavar in _OPTIONS.items():
        field = Settings.model_fields[name]
        default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
        command.add_argument(
            f"--{name.replace('_', '-')}",
            type=int if field.annotation is int else str,
            metavar=metavar,
            help=f"{field.description} Default: {default}.",
        )
    fleet = command.add_argument_group("several replicas behind one address, on Ray Serve")
    fleet.add_argument("--replicas", type=positive_number, metavar="N", help="how many, at least")
    fleet.add_argument(
        "--max-replicas",
        type=positive_number,
        metavar="N",
        help="add replicas while many tokens wait, up to N (default: none)",
    )
    fleet.add_argument(
        "--replica-cpus", type=positive_number, metavar="N", help="cores of a replica (1)"
    )
    fleet.add_argument(
        "--replica-gpus", type=positive_gpus, metavar="N", help="GPUs of a replica, or a part"
    )
    ranks = command.add_argument_group("one document read by several machines, on a Ray cluster")
    ranks.add_argument(
        "--ranks", type=positive_number, metavar="N", help="how many, this process included"
    )
    ranks.add_argument("--rank-cpus", type=positive_number, metavar="N", help="cores of a rank (1)")
    ranks.add_argument("--rank-gpus", type=positive_number, metavar="N", help="GPUs of a rank (0)")
    command.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="the Ray cluster of --replicas or --ranks; replicas also run without one, on this "
        "machine alone",
    )
    command.epilog = "Set everything else in the environment; `lln settings` prints the variables."


def _serve(chosen: Chosen) -> None:
    signal.signal(signal.SIGTERM, _exit)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as `nohup` would have it
        signal.signal(signal.SIGHUP, _terminate)
    given = {name: getattr(chosen, name) for name in _OPTIONS if getattr(chosen, name) is not None}
    replicas, ranks = _replicas(chosen), _ranks(chosen)
    settings = load_settings(**given)
    set_up_logs(settings)
    if replicas is not None:
        from service.replicas.run import serve_replicas

        serve_replicas(settings, replicas, address=chosen.address)
    elif ranks is not None:
        from service.ranks.run import serve_with_ranks

        serve_with_ranks(settings, ranks, address=chosen.address)
    else:
        from service.start import start

        # Python's own handler would let the threads that load the models run on while it ends
        # beneath them, which aborts the process.
        signal.signal(signal.SIGINT, _exit)
        start(settings)


def _replicas(chosen: Chosen) -> ReplicaOptions | None:
    if chosen.replicas is None:
        _refuse_without("--replicas", chosen, "max_replicas", "replica_cpus", "replica_gpus")
        if chosen.ranks is None and chosen.address is not None:
            raise InvalidInput("--address needs --replicas or --ranks")
        return None
    from service.replicas.options import ReplicaOptions

    return ReplicaOptions(
        replicas=chosen.replicas,
        max_replicas=chosen.max_replicas or 0,
        cpus=chosen.replica_cpus or 1,
        gpus=chosen.replica_gpus or 0,
    )


def _ranks(chosen: Chosen) -> RankOptions | None:
    if chosen.ranks is None:
        _refuse_without("--ranks", chosen, "rank_cpus", "rank_gpus")
        return None
    if chosen.replicas is not None:
        raise InvalidInput("--ranks does not go with --replicas: a replica reads alone")
    if chosen.address is None:
        raise InvalidInput(
            "--ranks needs --address; for ranks on this machine alone set LLN_ENGINE__RANKS instead"
        )
    from service.ranks.options import RankOptions

    return RankOptions(ranks=chosen.ranks, cpus=chosen.rank_cpus or 1, gpus=chosen.rank_gpus or 0)


def _refuse_without(option: str, chosen: Chosen, *others: str) -> None:
    for name in others:
        if getattr(chosen, name) is not None:
            raise InvalidInput(f"--{name.replace('_', '-')} needs {option}")


def _exit(number: int, _: FrameType | None) -> None:
    """Ends the process while it loads, with nothing to finish. In a container it is process 1,
    which the kernel ends only by signals that the process handles."""
    os._exit(128 + number)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """The terminal was closed: the server stops in order, whatever it does now."""
    signal.raise_signal(signal.SIGTERM)


def add_settings(commands: Commands) -> None:
    add_json(add_command(commands, "settings", _settings, "list the environment variables"))


def _settings(chosen: Chosen) -> None:
    rows = list(setting_rows())
    if chosen.json:
        print_json([row._asdict() for row in rows])
        return
    print_table([("VARIABLE", "DEFAULT", "MEANING"), *rows])
