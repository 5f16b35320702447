"""Callers who leave while the server looks into a long text: it gives the work up."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.service.outside import given_up, metric, wait_for

TEXT = "The otters live by the river, and the tea is dear. " * 1_200  # some seconds of work
MAP = {"layer": 5, "head": 0}


@pytest.mark.parametrize(
    ("route", "question"),
    [("/v1/attention/map", MAP), ("/v1/structure", {}), ("/v1/diagnostics", {"layers": [5]})],
)
def test_work_for_a_caller_who_left_is_given_up(
    server: Any, route: str, question: dict[str, Any]
) -> None:
    url = server.http_url
    before, units = given_up(url, f"POST {route}"), units_of(url)
    text = f"{route} {TEXT}"  # of which the server knows nothing yet
    with httpx.Client(base_url=url, timeout=60) as client, pytest.raises(httpx.ReadTimeout):
        client.post(route, json={"text": text, **question}, timeout=httpx.Timeout(60, read=1))
    wait_for(lambda: given_up(url, f"POST {route}") == before + 1, "the server", seconds=30)
    begun = units_of(url)
    assert begun > units, "it was at work"
    httpx.post(f"{url}/v1/tokenize", json={"text": "a word"}).raise_for_status()
    assert units_of(url) <= begun + 1, "a unit that runs comes to its end"


def units_of(url: str) -> float:
    return metric(url, 'lln_units_total{kind="diagnosis"}')
