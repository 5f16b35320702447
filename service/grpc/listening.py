"""How a gRPC server listens: its limits, its port, TLS."""

from __future__ import annotations

from grpc import aio

from service.addresses import in_url
from service.errors import PortInUse
from service.settings import MAX_INT32, Settings

# gRPC itself reads this much more than the limit, so that we reject a larger message: our error has
# a code and the size, grpc's has neither.
_REJECT_MARGIN_BYTES = 2**20

_READ_AHEAD_BYTES = 2**18


def server_options(settings: Settings) -> list[tuple[str, int]]:
    max_receive_bytes = min(settings.grpc_message_bytes + _REJECT_MARGIN_BYTES, MAX_INT32)
    return [
        ("grpc.max_receive_message_length", max_receive_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", settings.max_streams_per_connection),
        # How much of a message arrives before it is asked for. gRPC would raise it with the
        # connection's speed, to megabytes for each call.
        ("grpc.http2.lookahead_bytes", _READ_AHEAD_BYTES),
        ("grpc.http2.bdp_probe", 0),
        # Clients keep to this limit and queue the rest. gRPC's own protection counts a call until
        # it has forgotten it, a moment after the client has: it would refuse the client's next
        # calls, without a code of ours.
        ("grpc.http.overload_protection", 0),
        # Otherwise a second server could listen on the same port and take half of the calls.
        ("grpc.so_reuseport", 0),
    ]


def listen(server: aio.Server, settings: Settings) -> str:
    host = in_url(settings.grpc_host)
    address = f"{host}:{settings.grpc_port}"
    try:
        if settings.tls is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, settings.tls.grpc_credentials())
    except RuntimeError as error:  # another process took it while the models were loading
        raise PortInUse(f"cannot listen on {address}: {error}") from error
    return f"{host}:{port}"
