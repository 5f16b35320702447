"""Pages of other origins are rejected; pages of our own and of allowed origins are served."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
NAMED = "https://example.org"
TEXT = {"content-type": "text/plain"}
FOREIGN = [
    {"origin": "https://evil.example"},
    {"origin": "http://127.0.0.1:1"},
    {"origin": "null"},
    {"origin": ""},
    {"origin": "http://"},
    {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
]


@pytest.fixture(scope="module")
def named(launch_server: Any) -> Any:
    return launch_server(LLN_MODELS=MODEL, LLN_CORS_ORIGINS="HTTPS://Example.org:443/")


def embed(server: Any, **headers: str) -> httpx.Response:
    url = f"{server.http_url}/v1/documents"
    return httpx.post(url, content="a text", headers=TEXT | headers, timeout=60)


def refusal(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 403
    assert answer.headers["x-request-id"]
    error: dict[str, Any] = answer.json()["error"]
    assert (error["code"], error["type"]) == ("origin_not_allowed", "permission_error")
    return error


@pytest.mark.parametrize("headers", FOREIGN)
def test_pages_of_other_origins_are_rejected(server: Any, headers: dict[str, str]) -> None:
    error = refusal(embed(server, **headers))
    assert error["actual"] in headers.values()
    assert error["param"] in headers
    for path in ("/v1/claims", "/v1/models", "/info", "/nowhere"):
        refusal(httpx.get(server.http_url + path, headers=headers))


@pytest.mark.parametrize("headers", FOREIGN)
def test_unguarded_routes_are_open_to_all_origins(server: Any, headers: dict[str, str]) -> None:
    for path in ("/", "/docs", "/openapi.json", "/health", "/health/live", "/page/api.js"):
        assert httpx.get(server.http_url + path, headers=headers).status_code == 200, path


@pytest.mark.parametrize("verb", ["GET", "POST", "PATCH", "DELETE"])
def test_a_named_origin_may_use_every_verb(named: Any, verb: str) -> None:
    asked = {"origin": NAMED, "access-control-request-method": verb}
    answer = httpx.options(f"{named.http_url}/v1/documents", headers=asked)
    assert answer.status_code == 200, answer.text
    assert verb in answer.headers["access-control-allow-methods"]


def test_our_page_and_other_clients_are_served(server: Any) -> None:
    own = server.http_url.removeprefix("http://")
    for headers in (
        {},
        {"origin": f"http://{own}"},
        {"origin": f"http://{own}", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
    ):
        assert embed(server, **headers).status_code == 200, headers


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://lln.example", "lln.example"),
        ("https://lln.example", "lln.example:443"),
        ("http://lln.example", "LLN.example:80"),
        ("https://lln.example:8443", "lln.example:8443"),
        ("http://[::1]:8000", "[::1]:8000"),
    ],
)
def test_behind_a_proxy_the_page_is_known_by_its_host(server: Any, origin: str, host: str) -> None:
    assert embed(server, origin=origin, host=host).status_code == 200


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://lln.example:8443", "lln.example"),
        ("http://lln.example", "lln.example:443"),
        ("https://lln.example.evil.example", "lln.example"),
        ("https://evil.example", "lln.example"),
    ],
)
def test_another_host_or_port_is_another_origin(server: Any, origin: str, host: str) -> None:
    refusal(embed(server, origin=origin, host=host))


def test_an_empty_host_is_no_origin(server: Any) -> None:
    answer = embed(server, origin="http://:80", host="")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_http")


def test_sec_fetch_site_goes_before_the_host(server: Any) -> None:
    headers = {"origin": "https://lln.example", "sec-fetch-site": "same-origin"}
    assert embed(server, **headers).status_code == 200


def test_allowed_origins_are_served(named: Any) -> None:
    answer = embed(named, **{"origin": NAMED, "sec-fetch-site": "cross-site"})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == NAMED
    error = refusal(embed(named, origin="https://evil.example"))
    assert error["limit"] == NAMED
    refusal(embed(named, **{"sec-fetch-site": "cross-site"}))


def test_a_star_allows_all_origins(start_server: Any) -> None:
    server = start_server(LLN_MODELS=MODEL, LLN_CORS_ORIGINS="*")
    for headers in FOREIGN:
        assert embed(server, **headers).status_code == 200, headers


def test_allowed_origins_may_send_and_read_headers(named: Any) -> None:
    asking = {
        "origin": NAMED,
        "access-control-request-method": "POST",
        "access-control-request-headers": (
            "authorization,content-type,traceparent,x-request-timeout-ms,x-stainless-arch,"
            "x-stainless-retry-count"
        ),
    }
    answer = httpx.options(f"{named.http_url}/v1/embeddings", headers=asking)
    assert answer.status_code == 200
    allowed = answer.headers["access-control-allow-headers"]
    assert set(asking["access-control-request-headers"].split(",")) <= {
        name.strip().lower() for name in allowed.split(",")
    }
    body = {"inputs": "a text"}
    answer = httpx.post(f"{named.http_url}/embed", json=body, headers={"origin": NAMED})
    exposed = {name.strip() for name in answer.headers["access-control-expose-headers"].split(",")}
    assert exposed >= {"location", "retry-after", "x-lln-document"}
    told = {name for name in answer.headers if name.startswith("x-") or "timing" in name}
    assert exposed >= told - {"x-content-type-options"}
    assert "access-control-allow-credentials" not in answer.headers


def test_a_preflight_of_another_origin_is_rejected(server: Any, named: Any) -> None:
    asking = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    refusal(httpx.options(f"{server.http_url}/v1/embeddings", headers=asking))
    answer = httpx.options(f"{named.http_url}/v1/embeddings", headers=asking)
    assert answer.status_code == 400
    assert "access-control-allow-origin" not in answer.headers
