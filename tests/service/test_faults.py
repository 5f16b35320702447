"""Faults of a running server: every request is answered, nothing hangs, and health is correct.

The model is small and real. Faults that cannot be produced on demand are raised in the encoder's
lookup of word embeddings. Faults of a whole process are in test_process_faults.py.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pytest
import torch
import uvicorn
from grpc_health.v1 import health_pb2
from torch import Tensor

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.model.encoder import Encoder
from service.app import create_app
from service.environment import load_settings
from service.pb.lln.v1 import embeddings_pb2 as pb
from tests.service.outside import free_port, wait_for
from tests.service.stubs import embeddings_stub, health_stub

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

POISON = 11
"""The token id that triggers the faults below."""

Fault = Callable[[Tensor], None]


class FaultyEncoder(Encoder):
    """The encoder, with a fault before its lookup of words."""

    def __init__(self, sound: Encoder) -> None:
        self.__dict__.update(vars(sound))
        self._short_text_path = None  # it looks words up by itself
        self.fault: Fault = lambda ids: None

    def embed(self, ids: Tensor, positions: Tensor, lengths: Tensor | int) -> Tensor:
        self.fault(ids)
        return super().embed(ids, positions, lengths)


@dataclass(frozen=True)
class InProcess:
    """A server in a thread of the test process, whose encoder can be made to fail."""

    encoder: FaultyEncoder
    http_url: str
    grpc_address: str

    def embed(self, *ids: int) -> httpx.Response:
        body = {"input": list(ids)}
        return httpx.post(f"{self.http_url}/v1/embeddings", json=body, timeout=30)

    def embed_many(self, inputs: Sequence[tuple[int, ...]]) -> list[httpx.Response]:
        with ThreadPoolExecutor(len(inputs)) as pool:
            return list(pool.map(lambda ids: self.embed(*ids), inputs))

    def grpc_code(self, *ids: int) -> Any:
        with grpc.insecure_channel(self.grpc_address) as channel:
            stub = embeddings_stub(channel)
            message = pb.EmbedRequest(input=[pb.Input(token_ids=pb.TokenIds(ids=ids))])
            try:
                stub.Embed(message, timeout=30)
            except grpc.RpcError as error:
                failure: Any = error
                return failure.code()
            return grpc.StatusCode.OK

    def readiness(self) -> tuple[int, str, int]:
        """Returns the status and code over HTTP, and the health over gRPC."""
        answer = httpx.get(f"{self.http_url}/health/ready")
        code = "ok" if answer.status_code == 200 else answer.json()["error"]["code"]
        with grpc.insecure_channel(self.grpc_address) as channel:
            stub = health_stub(channel)
            return answer.status_code, code, stub.Check(health_pb2.HealthCheckRequest()).status


READY = (200, "ok", health_pb2.HealthCheckResponse.SERVING)


@pytest.fixture
def server(write_checkpoint: WriteCheckpoint) -> Iterator[InProcess]:
    config = EngineConfig(device="cpu", num_threads=1, stuck_after_s=1, drain_timeout_s=2)
    model = load_model(str(write_checkpoint()), config=config)
    encoder = FaultyEncoder(model.encoder)
    faulty: EmbeddingModel = replace(model, encoder=encoder)
    http_port, grpc_port = free_port(), free_port()
    settings = load_settings(grpc_port=grpc_port, engine=config)
    app = create_app(settings, AsyncEngine([faulty], config=config))
    running = uvicorn.Server(
        uvicorn.Config(app, port=http_port, log_config=None, timeout_graceful_shutdown=3)
    )
    thread = threading.Thread(target=lambda: asyncio.run(running.serve()))
    thread.start()
    wait_for(lambda: running.started, "the server")
    yield InProcess(encoder, f"http://127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}")
    running.should_exit = True
    thread.join(20)
    assert not thread.is_alive()


def raise_for_poison(error: BaseException) -> Fault:
    def fault(ids: Tensor) -> None:
        if POISON in ids:
            raise error

    return fault


def test_a_device_error_hits_only_the_text_that_caused_it(server: InProcess) -> None:
    server.encoder.fault = raise_for_poison(RuntimeError("illegal memory access at 0xdeadbeef"))
    inputs = [(7, POISON, 9) if number % 10 == 3 else (7, 8, 9) for number in range(40)]
    answers = server.embed_many(inputs)
    assert Counter(answer.status_code for answer in answers) == {200: 36, 500: 4}
    for ids, answer in zip(inputs, answers, strict=True):
        assert answer.status_code == (500 if POISON in ids else 200)
    error = answers[3].json()["error"]
    assert error["code"] == "device_failure"
    assert "0xdeadbeef" not in error["message"]
    assert server.grpc_code(7, POISON) == grpc.StatusCode.INTERNAL
    assert server.readiness() == READY


def test_out_of_memory_in_a_batch_fails_no_request(server: InProcess) -> None:
    def fault(ids: Tensor) -> None:
        if len(ids) > 12:
            raise torch.OutOfMemoryError("CUDA out of memory")

    server.encoder.fault = fault
    answers = server.embed_many([(7, 8, 9, 10)] * 30)
    assert Counter(answer.status_code for answer in answers) == {200: 30}
    assert server.readiness() == READY


def test_the_death_of_the_device_thread(server: InProcess) -> None:
    """Waiting requests are answered, new ones are rejected, and all probes report it."""
    server.encoder.fault = raise_for_poison(SystemExit("killed"))
    answers = server.embed_many([(7, POISON)] * 3 + [(7, 8)] * 20)
    assert {answer.status_code for answer in answers} <= {200, 500, 503}
    assert 500 in {answer.status_code for answer in answers}
    wait_for(lambda: server.readiness()[0] == 503, "the truth from health")
    assert server.readiness() == (503, "not_ready", health_pb2.HealthCheckResponse.NOT_SERVING)
    assert server.embed(7, 8).status_code == 503
    assert server.grpc_code(7, 8) == grpc.StatusCode.UNAVAILABLE
    assert httpx.get(f"{server.http_url}/health/live").status_code == 200


def test_a_stuck_device_is_not_ready_until_it_moves_again(server: InProcess) -> None:
    moves = threading.Event()

    def fault(ids: Tensor) -> None:
        if POISON in ids:
            moves.wait(20)

    server.encoder.fault = fault
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.embed, 7, POISON)
        wait_for(lambda: server.readiness()[0] == 503, "the watchdog")
        assert server.readiness() == (503, "stuck", health_pb2.HealthCheckResponse.NOT_SERVING)
        assert httpx.get(f"{server.http_url}/health/live").status_code == 200
        moves.set()
        assert waiting.result().status_code == 200
    # The answer leaves a moment before the device's thread is done with it.
    wait_for(lambda: server.readiness() == READY, "the device to be done")


def test_deadlines_hold_on_a_stuck_device(server: InProcess) -> None:
    moves = threading.Event()

    def fault(ids: Tensor) -> None:
        moves.wait(20)

    server.encoder.fault = fault
    try:
        answer = httpx.post(
            f"{server.http_url}/v1/embeddings",
            json={"input": [7, 8]},
            headers={"x-request-timeout-ms": "300"},
            timeout=10,
        )
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "deadline_exceeded"
    finally:
        moves.set()


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0])
def test_a_jump_of_the_clock(
    server: InProcess, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    """The wall clock is set during a computation. Deadlines and health use the monotonic clock."""
    true_time = time.time
    jumped = threading.Event()

    def fault(ids: Tensor) -> None:
        jumped.wait(20)

    server.encoder.fault = fault
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(server.embed, 7, 8) for _ in range(4)]
        time.sleep(0.1)
        monkeypatch.setattr(time, "time", lambda: true_time() + jump_s)
        jumped.set()
        answers = [one.result() for one in asked]
    assert {answer.status_code for answer in answers} == {200}
    assert server.embed(7, 8).status_code == 200
    assert server.readiness() == READY
    assert float(answers[0].headers["server-timing"].split("compute;dur=")[1]) < 20_000
