"""`lln serve`."""

from __future__ import annotations

from service.commands.base import Chosen, Commands, add_command
from service.logs import set_up_logs
from service.settings import load_settings

_GIVEN = ("http_host", "http_port", "grpc_host", "grpc_port", "models")


def add(commands: Commands) -> None:
    command = add_command(commands, "serve", _serve, "serve HTTP and gRPC until told to stop")
    command.add_argument("--http-host", help="address HTTP listens on")
    command.add_argument("--http-port", type=int, help="port of HTTP")
    command.add_argument("--grpc-host", help="address gRPC listens on")
    command.add_argument("--grpc-port", type=int, help="port of gRPC")
    command.add_argument("--models", help="models to serve, separated by commas")
    command.epilog = "All else is set in the environment; `lln settings` prints the table."


def _serve(chosen: Chosen) -> None:
    given = {name: getattr(chosen, name) for name in _GIVEN if getattr(chosen, name) is not None}
    settings = load_settings(**given)
    set_up_logs(settings)
    from service.server import serve

    serve(settings)
