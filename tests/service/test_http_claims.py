"""GET /v1/claims: computed once, beside everything else, and told while it lasts."""

from __future__ import annotations

import time

import httpx

from engine.claims import CLAIMS
from service.http.answers import ClaimList


def _finished(http: httpx.Client) -> ClaimList:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        answer = http.get("/v1/claims")
        found = ClaimList.model_validate_json(answer.content, strict=True)
        assert answer.status_code == (200 if found.state == "done" else 202)
        assert found.checked == len(found.data) <= found.total == len(CLAIMS)
        if found.state == "done":
            return found
        assert int(answer.headers["retry-after"]) > 0
        time.sleep(0.5)
    raise AssertionError("the claims were not checked in time")


def test_claims(http: httpx.Client) -> None:
    found = _finished(http)
    assert [row.id for row in found.data] == [claim.id for claim in CLAIMS]
    some = http.get("/v1/claims", params={"only": ["lln.theorem-3.3", "rank-collapse"]}).json()
    assert some["state"] == "done"
    assert {row["id"].split(".")[0] for row in some["data"]} == {"lln", "rank-collapse"}
    [failed] = [row for row in some["data"] if row["id"] == "lln.theorem-3.3"]
    assert failed["verdict"] == "fails"
    assert len(failed["evidence"]["counterexample"]) == 3


def test_unknown_claim(http: httpx.Client) -> None:
    answer = http.get("/v1/claims", params={"only": "theorem-1"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "unknown_claim"
    assert answer.json()["error"]["param"] == "only"
