"""The image's health check connects to the server's address and to no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from service.addresses import in_url, own_address
from service.probe import check


class Ready(BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keeps the log out of the test output."""


@contextmanager
def ready_at(host: str) -> Iterator[int]:
    server = HTTPServer((host, 0), Ready)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("listening", "setting"),
    [("127.0.0.1", "0.0.0.0"), ("127.0.0.1", ""), ("127.0.0.2", "127.0.0.2")],
)
def test_probe_uses_the_servers_address(listening: str, setting: str) -> None:
    with ready_at(listening) as port:
        check({"LLN_HTTP_HOST": setting, "LLN_HTTP_PORT": str(port)})
    assert Ready.asked[-1] == "/health/ready"


def test_probe_uses_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker sets the proxies of its configuration in every container."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ready_at("127.0.0.1") as port:
        check({"LLN_HTTP_PORT": str(port)})


def test_probe_fails_at_another_address() -> None:
    with ready_at("127.0.0.1") as port, pytest.raises(OSError, match="refused"):
        check({"LLN_HTTP_HOST": "127.0.0.2", "LLN_HTTP_PORT": str(port)})


def test_probe_uses_grpc_if_clients_need_certificates() -> None:
    with ready_at("127.0.0.2") as port:
        files = {"LLN_TLS_CLIENT_CA_FILE": "ca.pem", "LLN_GRPC_PORT": str(port)}
        check(files | {"LLN_GRPC_HOST": "127.0.0.2"})
        with pytest.raises(OSError, match="refused"):
            check(files)


def test_addresses() -> None:
    assert in_url(own_address("::")) == "[::1]"
    assert in_url(own_address("10.0.0.7")) == "10.0.0.7"
