"""The container image's health check: `python -m service.probe` succeeds if the server is ready.

It connects to the address in the environment's settings, never through a proxy. It does not verify
the certificate: the server is on the same machine.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
import urllib.request
from collections.abc import Mapping

from service.addresses import in_url, own_address

_HOST = "127.0.0.1"
_TIMEOUT_S = 2.0


def check(environment: Mapping[str, str]) -> None:
    """Raises OSError unless the server is ready.

    A server that requires client certificates would reject this check over HTTP. It counts as ready
    once it listens for gRPC, which happens when its models are loaded.
    """
    if environment.get("LLN_TLS_CLIENT_CA_FILE"):
        host = own_address(environment.get("LLN_GRPC_HOST", _HOST))
        port = int(environment.get("LLN_GRPC_PORT", "50051"))
        socket.create_connection((host, port), _TIMEOUT_S).close()
        return
    _ask_over_http(environment)


def _ask_over_http(environment: Mapping[str, str]) -> None:
    host = in_url(own_address(environment.get("LLN_HTTP_HOST", _HOST)))
    port = int(environment.get("LLN_HTTP_PORT", "8000"))
    has_tls = bool(environment.get("LLN_TLS_CERT_FILE"))
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPSHandler(context=ssl._create_unverified_context()),
    )
    url = f"http{'s' if has_tls else ''}://{host}:{port}/health/ready"
    opener.open(url, timeout=_TIMEOUT_S).close()


if __name__ == "__main__":
    try:
        check(os.environ)
    except OSError as error:
        sys.exit(f"not ready: {error}")
