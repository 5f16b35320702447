"""The image's health check: `python -m service.probe` ends well while the server is ready.

It asks as the settings say the server listens. It is no other client's business: the name in a
certificate proves nothing to who is on the same machine, so it is not checked.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
import urllib.request
from collections.abc import Mapping

_HOST = "127.0.0.1"
_TIMEOUT_S = 2.0


def check(environment: Mapping[str, str]) -> None:
    """Raises OSError unless the server is ready; where only clients with a certificate are
    answered, unless it listens for gRPC, which it does once its models are loaded."""
    port = int(environment.get("LLN_HTTP_PORT", "8000"))
    if environment.get("LLN_TLS_CLIENT_CA_FILE"):
        grpc_port = int(environment.get("LLN_GRPC_PORT", "50051"))
        socket.create_connection((_HOST, grpc_port), _TIMEOUT_S).close()
        return
    tls = ssl._create_unverified_context() if environment.get("LLN_TLS_CERT_FILE") else None
    url = f"http{'s' if tls else ''}://{_HOST}:{port}/health/ready"
    urllib.request.urlopen(url, timeout=_TIMEOUT_S, context=tls).close()


if __name__ == "__main__":
    try:
        check(os.environ)
    except OSError as error:
        sys.exit(f"not ready: {error}")
