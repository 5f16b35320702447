"""`lln serve --replicas`: the same answers over both protocols, whatever dies; what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import grpc
import httpx
import numpy as np
import pytest
import yaml

from engine.engine import Engine
from engine.errors import InvalidInput
from service.bulk.cluster import ClusterUnreachable
from service.pb.lln.v1 import benchmarks_pb2
from service.pb.lln.v1 import embeddings_pb2 as pb
from service.pb.tei.v1 import tei_pb2
from service.replicas.run import _check_models
from tests.service.outside import free_port
from tests.service.processes import clean_environment, lln
from tests.service.replicas.ray_cluster import STOP_S
from tests.service.replicas.ray_servers import (
    Served,
    run_lln,
    serving,
)
from tests.service.stubs import benchmarks_stub, embeddings_stub, health_stub, tei_stub

pytestmark = pytest.mark.long

TEXT = "two servers, one address"
RETURN_CODE_OF_FAILURE = 1
CONFIG = Path(__file__).resolve().parents[3] / "deploy" / "ray" / "serve.yaml"


@pytest.fixture(scope="module")
def served(ray_folder: Path, ray_address: str, ray_model: str) -> Iterator[Served]:
    with serving(ray_folder, ray_model, "--replicas", "2", "--address", ray_address) as running:
        yield running


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=60) as client:
        yield client


@pytest.fixture
def channel(served: Served) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(served.grpc_address) as opened:
        yield opened


def test_both_protocols_give_the_vectors_of_one_engine(
    http: httpx.Client, channel: grpc.Channel, ray_model: str
) -> None:
    with Engine.load(ray_model) as engine:
        alone = engine.embed([TEXT])[0].tolist()
    body = {"input": TEXT, "encoding_format": "float"}
    found = [http.post("/v1/embeddings", json=body).json() for _ in range(3)]
    assert all(answer["data"][0]["embedding"] == pytest.approx(alone) for answer in found)
    message = pb.EmbedRequest(input=[pb.Input(text=TEXT)])
    answer = embeddings_stub(channel).Embed(message, timeout=30)
    vector = np.frombuffer(answer.embeddings[0].vector.data, "<f4")
    assert vector.tolist() == pytest.approx(alone)


def test_streams_pass_in_both_directions(channel: grpc.Channel) -> None:
    texts = [f"{TEXT} {number}" for number in range(5)]
    requests = (tei_pb2.EmbedRequest(inputs=text) for text in texts)
    answers = list(tei_stub(channel).EmbedStream(requests, timeout=30))
    assert [len(answer.embeddings) for answer in answers] == [64] * len(texts)
    assert health_stub(channel).Check(_health(), timeout=30).status == 1


def test_errors_keep_their_fields(http: httpx.Client, channel: grpc.Channel) -> None:
    answer = http.post("/v1/embeddings", json={"input": TEXT, "model": "none"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    with pytest.raises(grpc.RpcError) as failed:
        embeddings_stub(channel).Embed(pb.EmbedRequest(model="none"), timeout=30)
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND
    metadata: Any = failed.value.trailing_metadata()
    assert dict(metadata)["lln-error-code"] == "model_not_found"
    with pytest.raises(grpc.RpcError) as failed:
        embeddings_stub(channel).Embed(
            pb.EmbedRequest(input=[pb.Input(text="word " * 100_000)]), timeout=0.3
        )
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_every_replica_answers_for_a_run_of_one(http: httpx.Client, channel: grpc.Channel) -> None:
    plan = {"suite": "attention", "lengths": [512], "repeats": 1}
    started = [http.post("/v1/benchmarks", json=plan).json() for _ in range(2)]
    for run in started * 3:  # in turns, each would ask one of them for the other's
        assert http.get(f"/v1/benchmarks/{run['id']}").json()["replica"] == run["replica"]
        request = benchmarks_pb2.GetBenchmarkRequest(id=run["id"])
        assert benchmarks_stub(channel).Get(request, timeout=30).id == run["id"]
    gone = started[0]["id"].replace(started[0]["replica"], "vm-gone")
    answer = http.get(f"/v1/benchmarks/{gone}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "benchmark_elsewhere")


def test_files_are_found_whichever_replica_keeps_them(http: httpx.Client) -> None:
    line = b'{"custom_id": "1", "method": "POST", "url": "/v1/embeddings", "body": {"input": "x"}}'
    upload = {"file": ("a.jsonl", line)}
    made = http.post("/v1/files", files=upload, data={"purpose": "batch"}).json()
    assert [http.get(f"/v1/files/{made['id']}").status_code for _ in range(4)] == [200] * 4


def test_what_a_cluster_cannot_hold_is_refused_at_once(ray_address: str) -> None:
    refused = run_lln("serve", "--replicas", "2", "--replica-gpus", "1", "--address", ray_address)
    assert refused.returncode == RETURN_CODE_OF_FAILURE
    assert "2 replicas of 1 GPU need 2, and the cluster has 0: lower --replicas" in refused.stderr
    refused = run_lln("serve", "--replicas", "1", "--models", "./absent", "--address", ray_address)
    assert refused.returncode == RETURN_CODE_OF_FAILURE
    assert "absent" in refused.stderr
    assert "looked for on" in refused.stderr


def test_nodes_that_are_too_busy_to_look_for_the_models() -> None:
    class Busy:
        """Ray, whose tasks do not end."""

        util = MagicMock()
        remote = MagicMock()

        def nodes(self) -> list[dict[str, object]]:
            return [{"Alive": True, "NodeID": "1", "NodeManagerHostname": "one"}]

        def get(self, looking: object, timeout: float) -> None:
            raise TimeoutError("Get timed out: some object(s) not ready.")

    with pytest.raises(ClusterUnreachable, match="did not say within 60 s whether it has"):
        _check_models(Busy(), ["default"])


def test_a_cluster_that_does_not_answer() -> None:
    pytest.importorskip("ray")
    refused = run_lln("serve", "--replicas", "1", "--address", f"127.0.0.1:{free_port()}")
    assert refused.returncode == RETURN_CODE_OF_FAILURE
    assert "no Ray cluster answers" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--address", "x:1"), "--address needs --replicas or --ranks"),
        (("--replicas", "3", "--max-replicas", "2"), "max_replicas must be at least replicas (3)"),
    ],
)
def test_options_that_do_not_fit(arguments: tuple[str, ...], message: str) -> None:
    refused = lln("serve", *arguments, LLN_MODELS="default")
    assert refused.returncode == RETURN_CODE_OF_FAILURE
    assert message in refused.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # by Serve's own models
def test_the_config_for_clusters_is_one_that_serve_takes() -> None:
    pytest.importorskip("ray")
    from ray.serve.schema import ServeDeploySchema

    from service.replicas.application import build

    config = ServeDeploySchema.model_validate(yaml.safe_load(CONFIG.read_text()))
    (application,) = config.applications
    assert build(application.args) is not None
    with pytest.raises(InvalidInput, match="there is no option copies"):
        build({"copies": 2})


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_replica_is_killed_while_it_reads(ray_folder: Path) -> None:
    long, short = "A long document. " * 60_000, {"input": TEXT}
    with (
        serving(ray_folder, "default", "--replicas", "2") as served,
        httpx.Client(base_url=served.url, timeout=120) as http,
        grpc.insecure_channel(served.grpc_address) as channel,
        ThreadPoolExecutor() as pool,
    ):
        before = {pid: _cpu_s(pid) for pid in served.processes("replicas")}
        reading = pool.submit(
            httpx.post, f"{served.url}/v1/documents", json={"text": long}, timeout=120
        )
        time.sleep(3)
        others = [pool.submit(_short_texts, http, channel, short, 10.0) for _ in range(2)]
        time.sleep(1)
        reader = max(before, key=lambda pid: _cpu_s(pid) - before[pid])
        os.kill(reader, signal.SIGKILL)
        killed_at = time.monotonic()
        lost = reading.result()
        assert time.monotonic() - killed_at < 5
        assert (lost.status_code, lost.json()["error"]["code"]) == (503, "replica_lost")
        answered = [other.result() for other in others]
        assert min(answered) > 20, "none failed, and they went on"
        deadline = time.monotonic() + 60
        while len(served.processes("replicas")) < 2 and time.monotonic() < deadline:
            time.sleep(0.5)
        assert len(served.processes("replicas")) == 2, "the killed one is replaced"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_stop_answers_what_is_in_flight(ray_folder: Path) -> None:
    long = "A long document. " * 3_000
    with (
        serving(ray_folder, "default", "--replicas", "1") as served,
        grpc.insecure_channel(served.grpc_address) as channel,
        ThreadPoolExecutor() as pool,
    ):
        document = pool.submit(
            httpx.post, f"{served.url}/v1/documents", json={"text": long}, timeout=120
        )
        message = pb.EmbedRequest(input=[{"text": long}])
        text = pool.submit(embeddings_stub(channel).Embed, message, timeout=120)
        time.sleep(2)
        assert not document.done()
        assert not text.done()
        served.process.terminate()
        assert document.result().status_code == 200
        assert len(text.result().embeddings) == 1
        assert served.process.wait(STOP_S) == 0


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_second_signal_ends_both_protocols_at_once(ray_folder: Path) -> None:
    long = "A long document. " * 60_000
    settings = {"LLN_ENGINE__DRAIN_TIMEOUT_S": "600"}
    with (
        serving(ray_folder, "default", "--replicas", "1", **settings) as served,
        grpc.insecure_channel(served.grpc_address) as channel,
        ThreadPoolExecutor() as pool,
    ):
        document = pool.submit(
            httpx.post, f"{served.url}/v1/documents", json={"text": long}, timeout=120
        )
        call = embeddings_stub(channel).Embed.future(pb.EmbedRequest(input=[{"text": long}]))
        time.sleep(2)
        served.process.terminate()
        time.sleep(3)
        assert not document.done()
        assert not call.done()
        served.process.terminate()
        assert served.process.wait(15) == 128 + signal.SIGTERM
        assert document.result().json()["error"]["code"] == "replica_lost"
        assert call.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_replicas_are_added_while_many_tokens_wait_and_given_up_afterwards(
    ray_folder: Path,
) -> None:
    config = ray_folder / "serve.py"
    config.write_text(SCALING)
    log = ray_folder / "scaling.log"
    with log.open("wb") as output:
        finished = subprocess.run(
            [sys.executable, str(config)],
            env=clean_environment(LLN_MODELS="default", LLN_GRPC_PORT=str(free_port())),
            stdout=output,
            stderr=output,
            timeout=300,
        )
    assert finished.returncode == 0, log.read_text()


SCALING = """
import threading, time, ray
import httpx
from ray import serve
from service.replicas.application import build

PORT = 8899

def count():
    replicas = serve.status().applications["lln"].deployments["replicas"].replica_states
    return replicas.get("RUNNING", 0)

def wait_for(number, seconds):
    ends = time.monotonic() + seconds
    while count() != number:
        assert time.monotonic() < ends, f"{count()} replicas after {seconds} s"
        time.sleep(0.3)

def read():
    text = {"text": "A document that takes its time. " * 8_000}
    while not done.is_set():
        httpx.post(f"http://127.0.0.1:{PORT}/v1/documents", json=text, timeout=120)

ray.init(address="local", num_cpus=2, include_dashboard=False)
serve.start(http_options={"port": PORT})
options = {"replicas": 1, "max_replicas": 2, "tokens_each": 20_000}
serve.run(build({**options, "scale_up_s": 2, "scale_down_s": 4}), name="lln")
assert count() == 1
done = threading.Event()
callers = [threading.Thread(target=read) for _ in range(3)]
for caller in callers:
    caller.start()
wait_for(2, 90)
done.set()
for caller in callers:
    caller.join()
wait_for(1, 90)
serve.shutdown()
ray.shutdown()
"""


def _short_texts(
    http: httpx.Client, channel: grpc.Channel, body: dict[str, str], seconds: float
) -> int:
    """Sends short texts over both protocols; raises if one fails."""
    ends_at, answered = time.monotonic() + seconds, 0
    while time.monotonic() < ends_at:
        http.post("/v1/embeddings", json=body).raise_for_status()
        tei_stub(channel).Embed(tei_pb2.EmbedRequest(inputs=body["input"]), timeout=30)
        answered += 2
    return answered


def _health() -> Any:
    from grpc_health.v1 import health_pb2

    return health_pb2.HealthCheckRequest()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
