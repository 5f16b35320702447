"""Benchmarks over HTTP and gRPC: started, followed, cancelled, compared, and found again."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from service.pb.lln.v1 import benchmarks_pb2 as pb
from service.pb.lln.v1 import benchmarks_pb2_grpc as rpc

ENCODER: dict[str, Any] = {
    "suite": "encoder",
    "lengths": [16, 48],
    "attentions": ["softmax", "lln_diag"],
    "repeats": 1,
}
ENDLESS: dict[str, Any] = {
    "lengths": [4096, 4095, 4094, 4093],
    "attentions": ["lln_diag"],
    "repeats": 20,
}


def finished(http: httpx.Client, job_id: str, within_s: float = 60) -> dict[str, Any]:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        document: dict[str, Any] = http.get(f"/v1/benchmarks/{job_id}").json()
        if document["state"] not in ("queued", "running"):
            return document
        time.sleep(0.05)
    raise AssertionError(f"{job_id} has not ended in {within_s} s")


def run(http: httpx.Client, plan: dict[str, Any]) -> dict[str, Any]:
    return finished(http, http.post("/v1/benchmarks", json=plan).json()["id"])


@pytest.fixture(scope="module")
def stub(server: Any) -> Iterator[rpc.BenchmarksStub]:
    with grpc.insecure_channel(server.grpc_address) as channel:
        yield rpc.BenchmarksStub(channel)  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def done(server: Any) -> dict[str, Any]:
    with httpx.Client(base_url=server.http_url, timeout=60) as http:
        return run(http, ENCODER)


def test_a_run_is_kept(http: httpx.Client, done: dict[str, Any]) -> None:
    assert done["state"] == "done", done["error"]
    assert {(row["attention"], row["tokens"]) for row in done["rows"]} == {
        (attention, length) for attention in ENCODER["attentions"] for length in ENCODER["lengths"]
    }
    assert len(done["rows"]) == done["num_rows"]
    assert all(row["seconds"] > 0 and row["tokens_per_s"] > 0 for row in done["rows"])
    assert {"device", "torch", "commit", "revision"} <= set(done["machine"])
    assert done["id"] in [one["id"] for one in http.get("/v1/benchmarks").json()["data"]]


def test_start_answers_with_a_location(http: httpx.Client) -> None:
    response = http.post("/v1/benchmarks", json=ENCODER)
    assert response.status_code == 202
    assert response.headers["location"] == f"/v1/benchmarks/{response.json()['id']}"
    assert finished(http, response.json()["id"])["state"] == "done"


@pytest.mark.long
@pytest.mark.parametrize(
    "plan",
    [
        {"suite": "attention", "lengths": [33], "dtypes": ["float32", "bfloat16"], "repeats": 1},
        {"suite": "quality", "lengths": [64], "attentions": ["lln_diag", "lln"]},
    ],
)
def test_suites_on_the_device(http: httpx.Client, plan: dict[str, Any]) -> None:
    document = run(http, plan)
    assert document["state"] == "done", document["error"]
    assert len(document["rows"]) == document["num_rows"]
    if plan["suite"] == "quality":
        cosines = {row["attention"]: row["least_cosine"] for row in document["rows"]}
        assert cosines["lln_diag"] > 0.9999  # one block is the published model
        assert cosines["lln"] < 0.9999


@pytest.mark.long
def test_the_serving_suite_loads_this_very_server(http: httpx.Client) -> None:
    document = run(http, {"suite": "serving", "lengths": [8, 16], "seconds": 0.5})
    assert document["state"] == "done", document["error"]
    assert [row["share"] for row in document["rows"]] == [0.25, 0.5, 0.75, 1.0, 1.5]
    first = document["rows"][0]
    assert first["failed"] == 0
    assert first["answered_per_s"] > 0
    assert 0 < first["p50_s"] <= first["p95_s"] <= first["p99_s"]
    assert 8 <= first["tokens_per_s"] / first["answered_per_s"] <= 16


def test_formats(http: httpx.Client, done: dict[str, Any]) -> None:
    path = f"/v1/benchmarks/{done['id']}"
    table = http.get(path, params={"format": "csv"})
    assert table.headers["content-type"].startswith("text/csv")
    assert len(table.text.splitlines()) == 1 + len(done["rows"])
    assert http.get(path, headers={"accept": "text/csv"}).text == table.text
    picture = http.get(path, params={"format": "png"})
    assert picture.headers["content-type"] == "image/png"
    assert picture.content.startswith(b"\x89PNG")
    bad = http.get(path, params={"format": "pdf"})
    assert (bad.status_code, bad.json()["error"]["param"]) == (422, "format")


def test_a_run_is_followed_as_json_lines(http: httpx.Client) -> None:
    accept = {"accept": "application/x-ndjson"}
    with http.stream("POST", "/v1/benchmarks", json=ENCODER, headers=accept) as answer:
        assert answer.status_code == 202
        events = [json.loads(line) for line in answer.iter_lines()]
    assert [event["event"] for event in events][:1] == ["benchmark"]
    assert [event["done"] for event in events if event["event"] == "row"] == [1, 2, 3, 4]
    assert events[-1]["event"] == "end"
    assert events[-1]["benchmark"]["state"] == "done"
    # A page that is loaded again sees the same.
    again = http.get(f"/v1/benchmarks/{events[0]['benchmark']['id']}", headers=accept)
    rows = [json.loads(line) for line in again.text.splitlines()]
    assert [one["row"] for one in rows if one["event"] == "row"] == [
        one["row"] for one in events if one["event"] == "row"
    ]


def test_compare(http: httpx.Client, done: dict[str, Any]) -> None:
    other = run(http, ENCODER | {"lengths": [48]})
    found = http.get("/v1/benchmarks/compare", params={"a": done["id"], "b": other["id"]}).json()
    assert {line["key"]["tokens"] for line in found["rows"]} == {48}
    assert {one["tokens"] for one in found["only_in_a"]} == {16}
    change = found["rows"][0]["measures"]["seconds"]
    assert change["ratio"] == pytest.approx(change["b"] / change["a"])
    missing = http.get("/v1/benchmarks/compare", params={"a": done["id"]})
    assert (missing.status_code, missing.json()["error"]["param"]) == (422, "b")


def test_cancel(http: httpx.Client) -> None:
    job_id = http.post("/v1/benchmarks", json=ENDLESS).json()["id"]
    waiting = http.post("/v1/benchmarks", json=ENDLESS).json()["id"]
    started = time.monotonic()
    assert http.delete(f"/v1/benchmarks/{waiting}").json()["state"] == "cancelled"
    assert http.delete(f"/v1/benchmarks/{job_id}").json()["state"] == "cancelled"
    assert time.monotonic() - started < 10
    assert http.get(f"/v1/benchmarks/{job_id}").json()["state"] == "cancelled"
    # The next one is not held up by it, and cancelling twice changes nothing.
    assert run(http, ENCODER)["state"] == "done"
    assert http.delete(f"/v1/benchmarks/{job_id}").json()["state"] == "cancelled"


def test_texts_go_before_a_benchmark(http: httpx.Client) -> None:
    job_id = http.post("/v1/benchmarks", json=ENDLESS).json()["id"]
    try:
        taken = []
        for _ in range(5):
            started = time.monotonic()
            assert http.post("/v1/embeddings", json={"input": "a query"}).status_code == 200
            taken.append(time.monotonic() - started)
        assert http.get(f"/v1/benchmarks/{job_id}").json()["state"] == "running"
        assert min(taken) < 5  # the whole run takes minutes
    finally:
        http.delete(f"/v1/benchmarks/{job_id}")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suite": "decoder"}, "suite"),
        ({"lengths": []}, "lengths"),
        ({"lengths": [0]}, "lengths[0]"),
        ({"lengths": [16.5]}, "lengths[0]"),
        ({"attentions": ["magic"]}, "attentions[0]"),
        ({"repeats": 0}, "repeats"),
        ({"repeat": 1}, "repeat"),
        ({"seconds": 1}, "seconds"),
    ],
)
def test_bad_benchmark(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    response = http.post("/v1/benchmarks", json=fields)
    # A field that is right by itself and has no use in this suite is no error of its shape.
    assert response.status_code == (400 if param == "seconds" else 422)
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(("verb", "tail"), [("GET", ""), ("DELETE", ""), ("GET", "?format=png")])
def test_unknown_benchmark(http: httpx.Client, verb: str, tail: str) -> None:
    response = http.request(verb, f"/v1/benchmarks/bench-none{tail}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


def test_grpc_run_get_list(stub: rpc.BenchmarksStub) -> None:
    request = pb.RunBenchmarkRequest(lengths=[16], attentions=["lln_diag"], repeats=1)
    events = list(stub.Run(request, timeout=60))
    job_id = events[0].benchmark.id
    assert events[1].row.labels["attention"] == "lln_diag"
    assert events[1].row.figures["tokens"] == 16
    assert (events[1].done, events[1].num_rows) == (1, 1)
    assert events[-1].benchmark.state == "done"
    assert stub.Get(pb.GetBenchmarkRequest(id=job_id)) == events[-1].benchmark
    listed = stub.List(pb.ListBenchmarksRequest()).benchmarks
    assert job_id in [one.id for one in listed]


def test_grpc_cancel_ends_the_stream(stub: rpc.BenchmarksStub) -> None:
    events = stub.Run(pb.RunBenchmarkRequest(**ENDLESS), timeout=60)
    job_id = next(events).benchmark.id
    assert stub.Cancel(pb.CancelBenchmarkRequest(id=job_id)).state == "cancelled"
    *_, last = events
    assert last.benchmark.state == "cancelled"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"suite": "decoder"}, "invalid_field"),
        ({"lengths": [0]}, "invalid_field"),
        ({"suite": "serving", "repeats": 1}, "unused_field"),
        ({"model": "nope"}, "model_not_found"),
    ],
)
def test_grpc_refuses_what_http_refuses(
    stub: rpc.BenchmarksStub, http: httpx.Client, fields: dict[str, Any], code: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Run(pb.RunBenchmarkRequest(**fields), timeout=60))
    trailing: Any = caught.value.trailing_metadata()
    assert dict(trailing)["lln-error-code"] == code
    assert http.post("/v1/benchmarks", json=fields).json()["error"]["code"] == code


def test_a_killed_server_finds_its_runs_again_and_another_says_whose_they_are(
    start_server: Any, http: httpx.Client, stub: rpc.BenchmarksStub, tmp_path: Path
) -> None:
    kept = {
        "LLN_BENCHMARK_HISTORY": str(tmp_path / "kept.sqlite"),
        "LLN_MODELS": "default",
        "LLN_REPLICA": "pod-1.lln",
    }
    first = start_server(**kept)
    with httpx.Client(base_url=first.http_url, timeout=60) as first_http:
        done = run(first_http, ENCODER)
        assert done["replica"] == "pod-1.lln"
        cut = first_http.post("/v1/benchmarks", json=ENDLESS).json()["id"]
        while first_http.get(f"/v1/benchmarks/{cut}").json()["state"] == "queued":
            time.sleep(0.02)
        for verb in ("GET", "DELETE"):
            elsewhere = http.request(verb, f"/v1/benchmarks/{cut}")
            assert elsewhere.status_code == 404
            assert elsewhere.json()["error"]["code"] == "benchmark_elsewhere"
            assert "belongs to the replica pod-1.lln" in elsewhere.json()["error"]["message"]
        with pytest.raises(grpc.RpcError, match=r"belongs to the replica pod-1\.lln") as caught:
            stub.Get(pb.GetBenchmarkRequest(id=cut))
        trailing: Any = caught.value.trailing_metadata()
        assert dict(trailing)["lln-error-code"] == "benchmark_elsewhere"
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    second = start_server(**kept)
    with httpx.Client(base_url=second.http_url, timeout=60) as second_http:
        assert second_http.get(f"/v1/benchmarks/{done['id']}").json() == done
        assert second_http.get(f"/v1/benchmarks/{cut}").json()["state"] == "interrupted"
        # And a server that is asked to stop does not wait for a run, or for who follows it.
        last = second_http.post("/v1/benchmarks", json=ENDLESS).json()["id"]
        accept = {"accept": "application/x-ndjson"}
        with second_http.stream("GET", f"/v1/benchmarks/{last}", headers=accept) as answer:
            lines = answer.iter_lines()
            next(lines)
            second.process.send_signal(signal.SIGTERM)
            *_, end = lines
        assert json.loads(end)["benchmark"]["state"] == "interrupted"
    assert second.process.wait(30) == 0, second.log()
