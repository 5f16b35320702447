"""`lln serve` and `lln settings`."""

from __future__ import annotations

import os
import signal
from types import FrameType

from service.cli.common import Chosen, Commands, add_command, add_json, print_json, print_table
from service.logs import set_up_logs
from service.settings import Settings, load_settings, setting_rows

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
    command.epilog = "Set everything else in the environment; `lln settings` prints the variables."


def _serve(chosen: Chosen) -> None:
    signal.signal(signal.SIGTERM, _exit)
    given = {name: getattr(chosen, name) for name in _OPTIONS if getattr(chosen, name) is not None}
    settings = load_settings(**given)
    set_up_logs(settings)
    from service.server import serve

    serve(settings)


def _exit(number: int, _: FrameType | None) -> None:
    """Ends the process while it loads, with nothing to finish. In a container it is process 1,
    which the kernel ends only by signals that the process handles."""
    os._exit(128 + number)


def add_settings(commands: Commands) -> None:
    add_json(add_command(commands, "settings", _settings, "list the environment variables"))


def _settings(chosen: Chosen) -> None:
    rows = list(setting_rows())
    if chosen.json:
        print_json([row._asdict() for row in rows])
        return
    print_table([("VARIABLE", "DEFAULT", "MEANING"), *rows])
