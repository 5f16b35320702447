"""`lln serve`."""

from __future__ import annotations

import os
import signal
from types import FrameType

from service.commands.base import Chosen, Commands, add_command
from service.logs import set_up_logs
from service.settings import Settings, load_settings

_GIVEN = {
    "http_host": "ADDRESS",
    "http_port": "PORT",
    "grpc_host": "ADDRESS",
    "grpc_port": "PORT",
    "models": "NAME,NAME,...",
}


def add(commands: Commands) -> None:
    command = add_command(commands, "serve", _serve, "serve HTTP and gRPC until told to stop")
    for name, metavar in _GIVEN.items():
        flag = f"--{name.replace('_', '-')}"
        is_number = Settings.model_fields[name].annotation is int
        command.add_argument(
            flag, type=int if is_number else str, metavar=metavar, help=_about(name)
        )
    command.epilog = "All else is set in the environment; `lln settings` prints the table."


def _about(name: str) -> str:
    field = Settings.model_fields[name]
    default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
    return f"{field.description} Default: {default}."


def _serve(chosen: Chosen) -> None:
    signal.signal(signal.SIGTERM, _leave)
    given = {name: getattr(chosen, name) for name in _GIVEN if getattr(chosen, name) is not None}
    settings = load_settings(**given)
    set_up_logs(settings)
    from service.server import serve

    serve(settings)


def _leave(number: int, _: FrameType | None) -> None:
    """While the server loads there is nothing to finish. In a container it is process 1, which the
    kernel does not end by a signal that nobody handles."""
    os._exit(128 + number)
