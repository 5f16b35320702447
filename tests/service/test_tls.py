"""TLS over both protocols, with and without client certificates."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import trustme

from service.client import LLNClient, LLNClientError
from service.pb.lln.v1 import benchmarks_pb2 as pb
from tests.service.processes import lln
from tests.service.stubs import MODEL, benchmarks_stub, grpc_status


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def pem(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, server.pem and server.key."""
    folder = tmp_path_factory.mktemp("tls")
    server = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    server.private_key_pem.write_to_path(folder / "server.key")
    for part in server.cert_chain_pems:
        part.write_to_path(folder / "server.pem", append=True)
    return folder


@pytest.fixture(scope="module")
def tls_server(launch_server: Any, pem: Path) -> Any:
    """A server that requires TLS and client certificates."""
    return launch_server(
        LLN_MODELS=MODEL,
        LLN_TLS_CERT_FILE=str(pem / "server.pem"),
        LLN_TLS_KEY_FILE=str(pem / "server.key"),
        LLN_TLS_CLIENT_CA_FILE=str(pem / "ca.pem"),
    )


def client_context(authority: trustme.CA, *, with_certificate: bool = True) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if with_certificate:
        authority.issue_cert("client@example.org").configure_cert(context)
    return context


def test_https(tls_server: Any, authority: trustme.CA) -> None:
    assert tls_server.http_url.startswith("https://")
    with httpx.Client(verify=client_context(authority), base_url=tls_server.http_url) as client:
        answer = client.post("/v1/embeddings", json={"input": "a text"})
    assert len(answer.json()["data"][0]["embedding"]) == 384


def test_the_client_with_a_certificate(
    tls_server: Any, authority: trustme.CA, pem: Path, tmp_path: Path
) -> None:
    mine = authority.issue_cert("client@example.org")
    mine.private_key_pem.write_to_path(tmp_path / "mine.key")
    for part in mine.cert_chain_pems:
        part.write_to_path(tmp_path / "mine.pem", append=True)
    client = LLNClient(
        tls_server.http_url,
        ca_file=str(pem / "ca.pem"),
        cert_file=str(tmp_path / "mine.pem"),
        key_file=str(tmp_path / "mine.key"),
    )
    assert client.get_embedding_dimension() == 384
    with pytest.raises(LLNClientError, match="the limit is 33554432"):
        client.encode("x" * 40_000_000)
    with pytest.raises(ValueError, match="key_file needs cert_file"):
        LLNClient(tls_server.http_url, key_file=str(tmp_path / "mine.key"))


def test_the_serving_suite_has_no_client_certificate(
    tls_server: Any, authority: trustme.CA
) -> None:
    context = client_context(authority)
    with httpx.Client(verify=context, base_url=tls_server.http_url, timeout=60) as client:
        run = client.post("/v1/benchmarks", json={"suite": "serving", "seconds": 0.5}).json()
        deadline = time.monotonic() + 30
        while run["state"] in ("queued", "running") and time.monotonic() < deadline:
            time.sleep(0.1)
            run = client.get(f"/v1/benchmarks/{run['id']}").json()
    assert (run["state"], run["error"]["code"]) == ("failed", "not_available")
    assert "LLN_TLS_CLIENT_CA_FILE" in run["error"]["message"]


@pytest.fixture(scope="module")
def open_tls_server(launch_server: Any, pem: Path) -> Any:
    """A server that requires TLS, and no certificates of clients."""
    return launch_server(
        LLN_MODELS=MODEL,
        LLN_TLS_CERT_FILE=str(pem / "server.pem"),
        LLN_TLS_KEY_FILE=str(pem / "server.key"),
    )


def bench(server: Any, *options: str) -> subprocess.CompletedProcess[str]:
    plan = ("--suite", "serving", "--model", MODEL, "--lengths", "8", "--seconds", "0.5", "--json")
    return lln("bench", *plan, "--server", server.http_url, *options)


@pytest.mark.long
def test_the_load_verifies_the_certificate(open_tls_server: Any, pem: Path) -> None:
    refused = bench(open_tls_server)
    assert refused.returncode == 1
    assert f"lln: the certificate of {open_tls_server.http_url} cannot be" in refused.stderr
    assert "--ca-file" in refused.stderr
    assert "--insecure" in refused.stderr
    trusting = (("--ca-file", str(pem / "ca.pem")), ("--insecure",))
    with ThreadPoolExecutor(len(trusting)) as pool:  # each takes seconds by the clock
        loads = list(pool.map(lambda options: bench(open_tls_server, *options), trusting))
    for found in loads:
        assert found.returncode == 0, found.stderr
        rows = json.loads(found.stdout)["rows"]
        assert [row["failed"] for row in rows] == [0] * len(rows)
        assert rows[0]["answered_per_s"] > 0


def test_the_load_of_a_server_with_another_name_or_authority(
    open_tls_server: Any, pem: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    assert "cannot be verified" in bench(open_tls_server, "--ca-file", str(other)).stderr
    port = open_tls_server.http_url.rpartition(":")[2]
    named = replace(open_tls_server, http_url=f"https://127.1:{port}")
    assert "Hostname mismatch" in bench(named, "--ca-file", str(pem / "ca.pem")).stderr


@pytest.mark.parametrize("path", ["nowhere.pem", "server.key"])
def test_a_file_that_names_no_authority(open_tls_server: Any, pem: Path, path: str) -> None:
    found = bench(open_tls_server, "--ca-file", str(pem / path))
    assert found.returncode == 1
    assert found.stderr.startswith(f"lln: --ca-file {pem / path} cannot be used: ")


@pytest.mark.long
def test_a_server_loads_itself_over_tls(open_tls_server: Any, authority: trustme.CA) -> None:
    """No authority that the system trusts need have signed its certificate."""
    credentials = grpc_tls(authority, with_certificate=False)
    request = pb.RunBenchmarkRequest(suite="serving", lengths=[8], seconds=0.5)
    with grpc.secure_channel(open_tls_server.grpc_address, credentials) as channel:
        *_, last = benchmarks_stub(channel).Run(request, timeout=60)
    assert (last.benchmark.state, last.benchmark.error_message) == ("done", "")


def probe(server: Any, **settings: str) -> int:
    """Runs the image's health check in the environment of the server."""
    ports = {
        "LLN_HTTP_PORT": server.http_url.rpartition(":")[2],
        "LLN_GRPC_PORT": server.grpc_address.rpartition(":")[2],
    }
    return subprocess.run(
        [sys.executable, "-m", "service.probe"],
        env=os.environ | ports | settings,
        timeout=60,
        check=False,
    ).returncode


def test_the_health_check_of_a_server_without_tls(server: Any) -> None:
    assert probe(server) == 0
    assert probe(server, LLN_HTTP_PORT="1") == 1


def test_the_health_check_of_a_server_with_tls(start_server: Any, pem: Path) -> None:
    files = {
        "LLN_TLS_CERT_FILE": str(pem / "server.pem"),
        "LLN_TLS_KEY_FILE": str(pem / "server.key"),
    }
    running = start_server(LLN_MODELS=MODEL, **files)
    assert probe(running, **files) == 0


def test_the_health_check_where_clients_need_certificates(tls_server: Any, pem: Path) -> None:
    files = {
        "LLN_TLS_CERT_FILE": str(pem / "server.pem"),
        "LLN_TLS_CLIENT_CA_FILE": str(pem / "ca.pem"),
    }
    assert probe(tls_server, **files) == 0
    assert probe(tls_server, **files, LLN_GRPC_PORT="1") == 1


def test_https_without_a_clients_certificate(tls_server: Any, authority: trustme.CA) -> None:
    context = client_context(authority, with_certificate=False)
    with httpx.Client(verify=context) as client, pytest.raises(httpx.TransportError):
        client.get(f"{tls_server.http_url}/health/live")


def test_replicas_do_not_start_where_clients_need_certificates(pem: Path) -> None:
    """Ray Serve would serve clients without one."""
    settings = {
        "LLN_TLS_CERT_FILE": str(pem / "server.pem"),
        "LLN_TLS_KEY_FILE": str(pem / "server.key"),
        "LLN_TLS_CLIENT_CA_FILE": str(pem / "ca.pem"),
    }
    found = lln("serve", "--replicas", "2", "--http-port", "0", "--grpc-port", "0", **settings)
    assert found.returncode == 2
    assert "LLN_TLS_CLIENT_CA_FILE does not go with --replicas" in found.stderr


def test_plain_http_is_not_answered(tls_server: Any) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(tls_server.http_url.replace("https", "http") + "/health/live")


def grpc_tls(authority: trustme.CA, *, with_certificate: bool) -> grpc.ChannelCredentials:
    if not with_certificate:
        return grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    client = authority.issue_cert("client@example.org")
    chain = b"".join(part.bytes() for part in client.cert_chain_pems)
    return grpc.ssl_channel_credentials(
        authority.cert_pem.bytes(), client.private_key_pem.bytes(), chain
    )


def test_grpc_over_tls(tls_server: Any, authority: trustme.CA) -> None:
    credentials = grpc_tls(authority, with_certificate=True)
    with grpc.secure_channel(tls_server.grpc_address, credentials) as channel:
        assert grpc_status(channel) is None
    credentials = grpc_tls(authority, with_certificate=False)
    with grpc.secure_channel(tls_server.grpc_address, credentials) as channel:
        assert grpc_status(channel).code() == grpc.StatusCode.UNAVAILABLE
    with grpc.insecure_channel(tls_server.grpc_address) as channel:
        assert grpc_status(channel).code() == grpc.StatusCode.UNAVAILABLE
