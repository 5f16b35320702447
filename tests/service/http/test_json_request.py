"""Large bodies are read elsewhere, and come to the same."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from service.body_budget import LARGE_BODY_BYTES
from service.errors import UnreadableBody
from service.http.json_request import JsonParser
from service.large_json import MAX_DEPTH, MAX_FIELDS, MAX_LISTS
from tests.service.outside import wait_for

IDS = [101, 2009, 102] * 200_000


@pytest.fixture(scope="module")
def documents() -> dict[str, Any]:
    return {
        "text": {"text": "naïve 北京 🦊 " * 100_000, "model": None, "n": 1.5},
        "ids": {"input": IDS},
        "batch": {"input": [IDS, [1, 2], "text", ["x"] * 20_000, [2**70] * 20_000]},
        "list": [{"input": IDS}] * 2,
    }


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def test_the_same_document_comes_back(documents: dict[str, Any]) -> None:
    async def scenario() -> None:
        parser = JsonParser()
        for document in documents.values():
            body = orjson.dumps(plain_floats(document))
            assert len(body) > LARGE_BODY_BYTES
            found = await parser.parse(body)
            assert plain(found) == orjson.loads(body)
        assert isinstance((await parser.parse(orjson.dumps({"input": IDS})))["input"], np.ndarray)
        parser.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("padding", [0, LARGE_BODY_BYTES])
def test_a_body_that_is_too_deep_is_refused(opening: bytes, padding: int) -> None:
    async def scenario() -> UnreadableBody:
        parser = JsonParser()
        closing = b"]" if opening == b"[" else b"}"
        await parser.parse(opening * MAX_DEPTH + b"1" + closing * MAX_DEPTH)
        with pytest.raises(UnreadableBody) as refusal:
            await parser.parse(b" " * padding + opening * 5_000 + b"1" + closing * 5_000)
        parser.close()
        return refusal.value

    error = asyncio.run(scenario())
    assert (error.code, error.limit) == ("too_deep", MAX_DEPTH)
    assert f"more than {MAX_DEPTH} lists and objects within each other" in error.message


def test_a_body_of_too_many_values_is_refused() -> None:
    async def scenario() -> None:
        parser = JsonParser()
        for start, value, end in (
            (b'{"input":[', b"[],", b"[]]}"),
            (b'{"a":{"b":[', b"0,", b"0]}}"),
        ):
            with pytest.raises(UnreadableBody) as refusal:
                await parser.parse(start + value * 2_000_000 + end)
            assert (refusal.value.code, refusal.value.limit) == ("too_many_values", 2_000_000)
        parser.close()

    asyncio.run(scenario())


@pytest.mark.long
@pytest.mark.parametrize("padding", [0, LARGE_BODY_BYTES])
def test_a_body_of_too_many_lists_is_refused_wherever_it_is_read(padding: int) -> None:
    """They would hold up the event loop when they arrive from the process that read them."""

    async def scenario() -> None:
        parser = JsonParser()
        text = b'{"text":"%b","lists":[%b%b]}'
        most = MAX_LISTS - 2  # besides the object and the list around them
        for tiny in (b"[],", b"{},", b"[0],"):
            lists = tiny * (most - 1) + tiny[:-1]
            document = await parser.parse(text % (b"x" * padding, lists, b""))
            assert len(document["lists"]) == most
            with pytest.raises(UnreadableBody) as refusal:
                await parser.parse(text % (b"x" * padding, lists, b",[]"))
            assert (refusal.value.code, refusal.value.limit) == ("too_many_lists", MAX_LISTS)
        brackets = "[{" * MAX_LISTS
        assert await parser.parse(orjson.dumps({"text": brackets})) == {"text": brackets}
        parser.close()

    asyncio.run(scenario())


def test_a_body_of_too_many_fields_is_refused() -> None:
    """They would hold up the event loop when they arrive from the process that read them."""

    async def scenario() -> None:
        parser = JsonParser()
        most = {str(number): 0 for number in range(MAX_FIELDS - 2)}
        fitting = orjson.dumps({"a": most, "b": 1})
        assert len(await parser.parse(fitting)) == 2
        with pytest.raises(UnreadableBody) as refusal:
            await parser.parse(fitting[:-1] + b',"c":{"d":1}}')
        assert (refusal.value.code, refusal.value.limit) == ("too_many_fields", MAX_FIELDS)
        parser.close()

    asyncio.run(scenario())


def plain_floats(value: Any) -> Any:
    """Whole numbers beyond 64 bits are floats in JSON as we read it."""
    if isinstance(value, dict):
        return {name: plain_floats(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain_floats(item) for item in value]
    return float(value) if isinstance(value, int) and value >= 2**64 else value


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"input": "' + b"x" * LARGE_BODY_BYTES, "invalid_json"),
        (b'{"input": "' + b"x" * LARGE_BODY_BYTES + b'\xff"}', "invalid_utf8"),
        (b'{"input": "' + b"x" * LARGE_BODY_BYTES + b'\\ud800"}', "invalid_unicode"),
        (b"{", "invalid_json"),
    ],
)
def test_what_cannot_be_read(body: bytes, code: str) -> None:
    async def scenario() -> None:
        parser = JsonParser()
        with pytest.raises(UnreadableBody) as refusal:
            await parser.parse(body)
        assert refusal.value.code == code
        parser.close()

    asyncio.run(scenario())


def test_the_loop_stays_free_meanwhile() -> None:
    """Two million ids keep the interpreter to themselves for longer than any pause seen here."""
    body = orjson.dumps({"input": [IDS] * 5})

    async def scenario() -> tuple[float, float]:
        parser = JsonParser()
        await parser.parse(orjson.dumps({"input": "x" * LARGE_BODY_BYTES}))  # starts the process
        reading = asyncio.create_task(parser.parse(body))
        longest, last = 0.0, time.perf_counter()
        while not reading.done():
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        parser.close()
        started = time.perf_counter()
        orjson.loads(body)
        return longest, time.perf_counter() - started

    pause_s, here_s = min(asyncio.run(scenario()) for _ in range(2))
    assert pause_s < here_s / 2


def process_of(parser: JsonParser) -> int:
    process = parser._process._process
    assert process is not None
    assert process.pid is not None
    return process.pid


def test_a_parser_that_is_killed_is_replaced() -> None:
    async def scenario() -> None:
        parser = JsonParser()
        body = orjson.dumps({"input": "x" * LARGE_BODY_BYTES})
        await parser.parse(body)
        killed = process_of(parser)
        os.kill(killed, signal.SIGKILL)
        assert (await parser.parse(body))["input"] == "x" * LARGE_BODY_BYTES
        assert (await parser.parse(body))["input"] == "x" * LARGE_BODY_BYTES
        assert process_of(parser) != killed
        parser.close()

    asyncio.run(scenario())


def test_a_parser_that_dies_while_it_answers_is_replaced() -> None:
    """Half of its answer is in the pipe, which nobody else may hold open."""
    body = orjson.dumps({"input": "x" * 20 * LARGE_BODY_BYTES})

    async def scenario() -> None:
        parser = JsonParser()
        await parser.parse(body)
        for after_s in (0.0, 0.01, 0.02, 0.04, 0.08):
            reading = asyncio.create_task(parser.parse(body))
            await asyncio.sleep(after_s)
            os.kill(process_of(parser), signal.SIGKILL)
            found = await asyncio.wait_for(reading, 30)
            assert len(found["input"]) == 20 * LARGE_BODY_BYTES
            await asyncio.wait_for(parser.parse(body), 30)  # starts the next one
        parser.close()

    asyncio.run(scenario())


def test_who_waits_no_longer_leaves_no_answer_to_the_next() -> None:
    async def scenario() -> None:
        parser = JsonParser()
        for number in range(5):
            abandoned = asyncio.create_task(parser.parse(b'"' + b"a" * LARGE_BODY_BYTES + b'"'))
            await asyncio.sleep(0.002 * number)
            abandoned.cancel()
            assert (
                await parser.parse(b'"' + b"b" * LARGE_BODY_BYTES + b'"') == "b" * LARGE_BODY_BYTES
            )
        parser.close()

    asyncio.run(scenario())


def test_what_goes_too_deep_for_the_way_back_is_read_all_the_same() -> None:
    body = b"[" * 600 + b'"' + b"x" * LARGE_BODY_BYTES + b'"' + b"]" * 600

    async def scenario() -> None:
        parser = JsonParser()
        assert await parser.parse(body) == orjson.loads(body)
        parser.close()

    asyncio.run(scenario())


@pytest.mark.long
def test_the_parser_ends_with_a_server_that_is_killed() -> None:
    """Its end is seen by the pipe, which closes when both have ended."""
    program = f"""
import asyncio, os
from service.body_budget import LARGE_BODY_BYTES
from service.http.json_request import JsonParser

if __name__ == "__main__":
    asyncio.run(JsonParser().parse(b'"' + b"x" * {LARGE_BODY_BYTES} + b'"'))
    os._exit(7)
"""
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=60)
    assert ended.returncode == 7


def test_large_bodies_are_served(http: httpx.Client) -> None:
    ids = http.post("/v1/tokenize", json={"text": "A text of a few words. " * 50}).json()["ids"][
        1:-1
    ]
    padding = {"user": "x" * LARGE_BODY_BYTES}
    for value in ("a text", [2007, 2008], [[2007, 2008], "a text"]):
        small = http.post("/v1/embeddings", json={"input": value}).json()
        large = http.post("/v1/embeddings", json={"input": value, **padding}).json()
        assert large["data"] == small["data"]
    many = {"input": (ids * 20)[:2_000], **padding}
    document = http.post("/v1/embeddings", json=many).json()
    assert document["usage"]["total_tokens"] == 2_002


def test_a_large_body_of_bad_ids_is_refused(http: httpx.Client) -> None:
    body = {"input": [7] * 400_000 + [-1]}
    error = http.post("/v1/embeddings", json=body).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_token_id", "input[0]")


@pytest.mark.long
def test_the_deadline_counts_while_a_body_waits_to_be_read(start_server: Any) -> None:
    """The reader is stopped, as one that the machine has no memory for may be."""
    server = start_server(LLN_MODELS="default", LLN_REQUEST_TIMEOUT_S="3")
    url, body = (
        f"{server.http_url}/v1/embeddings",
        {"input": "a text", "user": "x" * LARGE_BODY_BYTES},
    )

    def is_read() -> bool:
        return httpx.post(url, json=body, timeout=60).status_code == 200

    wait_for(is_read, "the reader to start")  # on a slow machine longer than a request may take
    (reader,) = readers_of(server.process.pid)
    os.kill(reader, signal.SIGSTOP)
    try:
        for headers, limit_s in (({"x-request-timeout-ms": "300"}, 0.3), ({}, 3)):
            answer = httpx.post(url, json=body, headers=headers, timeout=60)
            assert (answer.status_code, answer.json()["error"]["code"]) == (
                504,
                "deadline_exceeded",
            )
            assert answer.json()["error"]["limit"] == limit_s
    finally:
        os.kill(reader, signal.SIGCONT)
    assert is_read()


def readers_of(parent: int) -> list[int]:
    asked = ["pgrep", "-P", str(parent), "-f", "spawn_main"]
    return [int(pid) for pid in subprocess.check_output(asked).split()]


def test_the_deadline_counts_while_a_text_is_tokenised(http: httpx.Client) -> None:
    started = time.monotonic()
    answer = http.post(
        "/v1/embeddings",
        json={"input": "word " * 1_000_000},
        headers={"x-request-timeout-ms": "100"},
    )
    assert answer.status_code == 504
    assert answer.json()["error"]["limit"] == 0.1
    assert time.monotonic() - started < 10
