"""Faults of a whole process and of its clients: killed, flooded, started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.errors import CheckpointError, DeviceFailure
from service.pb.lln.v1 import embeddings_pb2 as pb
from tests.service.outside import free_port, metric, wait_for
from tests.service.processes import ForkedProcess, clean_environment, lln
from tests.service.stubs import embeddings_stub

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

TEXT = "A text of some length, which takes a moment to embed. " * 40


@pytest.fixture(scope="module")
def fielded(launch_server: Any) -> Any:
    return launch_server(LLN_MODELS="default")


def address_of(server: Any) -> tuple[str, int]:
    host, port = server.http_url.partition("://")[2].split(":")
    return host, int(port)


def raw_request(text: str, num_texts: int = 1) -> bytes:
    body = json.dumps({"input": [text] * num_texts}).encode()
    return (
        b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )


def is_idle(server: Any) -> bool:
    url = server.http_url
    in_progress = metric(url, 'lln_requests_in_progress{protocol="http"}')
    calls = metric(url, 'lln_requests_in_progress{protocol="grpc"}')
    return in_progress == calls == 0 and metric(url, "lln_queue_depth") == 0


def test_clients_that_flood_and_vanish(fielded: Any) -> None:
    """Three hundred clients send a request and leave before the answer."""
    for _ in range(300):
        with socket.create_connection(address_of(fielded), timeout=10) as connection:
            connection.sendall(raw_request(TEXT))
    started = time.monotonic()
    answer = httpx.post(f"{fielded.http_url}/v1/embeddings", json={"input": "x"}, timeout=60)
    assert answer.status_code == 200
    wait_for(lambda: is_idle(fielded), "an idle server")
    assert time.monotonic() - started < 60
    assert "Traceback" not in fielded.log()


def test_grpc_clients_that_flood_and_vanish(fielded: Any) -> None:
    with grpc.insecure_channel(fielded.grpc_address) as channel:
        stub = embeddings_stub(channel)
        calls = [
            stub.Embed.future(pb.EmbedRequest(input=[pb.Input(text=TEXT)])) for _ in range(300)
        ]
        for call in calls:
            call.cancel()
    wait_for(lambda: is_idle(fielded), "an idle server")
    assert "Traceback" not in fielded.log()


@pytest.mark.long
def test_a_slow_reader_of_a_stream_does_not_block_others(fielded: Any) -> None:
    """The client asks for thousands of vectors and reads one: the server stops at its bound."""

    def requests() -> Iterator[pb.EmbedStreamRequest]:
        for _ in range(20_000):
            yield pb.EmbedStreamRequest(input=pb.Input(text="word " * 50))

    with grpc.insecure_channel(fielded.grpc_address) as channel:
        stub = embeddings_stub(channel)
        before = metric(fielded.http_url, 'lln_tokens_total{model="default"}')
        answers = stub.EmbedStream(requests())
        next(answers)
        time.sleep(1)
        answer = httpx.post(f"{fielded.http_url}/v1/embeddings", json={"input": "x"}, timeout=20)
        assert answer.status_code == 200
        embedded = (metric(fielded.http_url, 'lln_tokens_total{model="default"}') - before) / 52
        assert embedded < 5_000
        answers.cancel()
    wait_for(lambda: is_idle(fielded), "an idle server")


def test_a_slow_reader_of_an_answer_does_not_block_others(fielded: Any) -> None:
    readers = []
    for _ in range(4):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(address_of(fielded))
        connection.sendall(raw_request("word", num_texts=300))
        readers.append(connection)
    with ThreadPoolExecutor(5) as pool:
        answers = pool.map(
            lambda _: httpx.post(
                f"{fielded.http_url}/v1/embeddings", json={"input": "x"}, timeout=30
            ),
            range(20),
        )
        assert {answer.status_code for answer in answers} == {200}
    for connection in readers:
        connection.close()
    wait_for(lambda: is_idle(fielded), "an idle server")


@pytest.mark.slow
def test_sigkill_and_a_start_on_the_same_ports(start_server: Any) -> None:
    """Clients of the killed server get an error at once, and the next server answers them."""
    server = start_server(LLN_MODELS="default")
    host, port = address_of(server)
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(
                httpx.post,
                f"{server.http_url}/v1/embeddings",
                json={"input": TEXT * 30},
                timeout=60,
            )
            for _ in range(4)
        ]
        wait_for(
            lambda: metric(server.http_url, 'lln_requests_in_progress{protocol="http"}') >= 4,
            "requests in flight",
        )
        server.process.send_signal(signal.SIGKILL)
        failures = [one.exception(timeout=20) for one in asked]
    assert all(isinstance(failure, httpx.TransportError) for failure in failures)
    again = start_server(
        LLN_MODELS="default",
        LLN_HTTP_PORT=str(port),
        LLN_GRPC_PORT=server.grpc_address.rpartition(":")[2],
    )
    answer = httpx.post(f"http://{host}:{port}/v1/embeddings", json={"input": "x"}, timeout=60)
    assert answer.status_code == 200
    assert again.stop() == 0


def truncate(weights: bytes) -> bytes:
    return weights[: len(weights) // 2]


def break_header(weights: bytes) -> bytes:
    return weights[:8] + b"}" + weights[9:]


def announce_a_huge_header(weights: bytes) -> bytes:
    return (2**62).to_bytes(8, "little") + weights[8:]


def nothing_left(weights: bytes) -> bytes:
    return b""


def all_not_a_number(weights: bytes) -> bytes:
    header = 8 + int.from_bytes(weights[:8], "little")
    return weights[:header] + b"\xff" * (len(weights) - header)


@pytest.mark.parametrize(
    "damage", [truncate, break_header, announce_a_huge_header, nothing_left, all_not_a_number]
)
def test_damaged_weights_are_not_served(
    write_checkpoint: WriteCheckpoint, damage: Callable[[bytes], bytes]
) -> None:
    folder = write_checkpoint()
    weights = folder / "model.safetensors"
    weights.write_bytes(damage(weights.read_bytes()))

    async def serve() -> None:
        async with AsyncEngine.load([str(folder)], config=EngineConfig(device="cpu")):
            pytest.fail("it was served")

    with pytest.raises((CheckpointError, DeviceFailure)) as refusal:
        asyncio.run(serve())
    assert "\n" not in refusal.value.message


def test_damaged_weights_end_the_process_with_one_line(write_checkpoint: WriteCheckpoint) -> None:
    folder = write_checkpoint()
    weights = folder / "model.safetensors"
    weights.write_bytes(truncate(weights.read_bytes()))
    found = lln("serve", LLN_MODELS=str(folder), LLN_HTTP_PORT="0", LLN_GRPC_PORT="0")
    assert found.returncode == 1, found.stderr
    assert "Traceback" not in found.stderr
    assert found.stderr.strip().splitlines()[-1].startswith("lln: ")


def test_sigterm_while_the_models_load_ends_the_process(tmp_path: Path) -> None:
    """Needs a handler: the kernel ignores signals without one for process 1 of a container."""
    port = free_port()
    environment = clean_environment(LLN_HTTP_PORT=str(port), LLN_GRPC_PORT="0")
    log = tmp_path / "log"
    process = ForkedProcess(["serve"], environment, stdout=Path(os.devnull), stderr=log)
    wait_for(lambda: listens(port), "the port, which is taken before the weights are read")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    # Nothing but what it had logged until then.
    lines = log.read_text().splitlines()
    assert all(json.loads(line)["level"] == "info" for line in lines)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.long
def test_ctrl_c_while_the_models_load_ends_the_process(
    write_checkpoint: WriteCheckpoint,
) -> None:
    """Without a handler Python waits for the thread that loads, or aborts beneath it. The imports
    must be under way, so this process is not forked from one that has them."""
    config = write_checkpoint() / "config.json"
    config.unlink()
    os.mkfifo(config)  # as on a drive that does not answer
    environment = clean_environment(
        LLN_MODELS=str(config.parent), LLN_HTTP_PORT="0", LLN_GRPC_PORT="0"
    )
    command = (sys.executable, "-m", "service.cli", "serve")
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        with opened_by_its_reader(config):
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 128 + signal.SIGINT
    finally:
        process.kill()
        process.wait()


@contextmanager
def opened_by_its_reader(fifo: Path) -> Iterator[None]:
    """Nothing is written, so the reader waits."""
    ends: list[int] = []

    def is_read() -> bool:
        with suppress(OSError):  # until it is
            ends.append(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        return bool(ends)

    wait_for(is_read, "the reader")
    try:
        yield
    finally:
        os.close(ends[0])
