"""The log line of a request over HTTP."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import httpx
import pytest


def access_line(server: Any, request_id: str) -> dict[str, Any]:
    """The log line of a request, which is written just after its answer."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for line in server.log().splitlines():
            assert line.startswith("{"), f"not a JSON line: {line}"
            fields: dict[str, Any] = json.loads(line)
            if fields.get("request_id") == request_id and fields["event"] == "request":
                return fields
        time.sleep(0.05)
    raise AssertionError(f"no log line of {request_id}")


@pytest.mark.parametrize(
    ("offered", "taken"),
    [("trace-42", True), ("a" * 129, False), ("two words", False), ("", False)],
)
def test_request_id(http: httpx.Client, server: Any, offered: str, taken: bool) -> None:
    response = http.post(
        "/v1/embeddings", json={"input": "hello"}, headers={"x-request-id": offered}
    )
    given = response.headers["x-request-id"]
    assert (given == offered) is taken
    assert re.fullmatch(r"[A-Za-z0-9._:/+=@-]{1,128}", given)
    assert access_line(server, given)["method"] == "POST /v1/embeddings"


def test_log_has_figures_but_never_the_text(http: httpx.Client, server: Any) -> None:
    secret = "xylophonist"
    headers = {"x-request-id": "log-check"}
    http.post("/v1/embeddings", json={"input": f"the {secret}"}, headers=headers)
    http.post("/v1/embeddings", json={"input": 7, "truncate": secret})
    line = access_line(server, "log-check")
    assert line["status"] == 200
    assert line["tokens"] > 2
    assert line["seconds"] > 0
    assert line["model"] == "default"
    assert secret not in server.log()
