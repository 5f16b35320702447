"""Where a request goes, what it is taken to cost, and how many replicas there should be."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from engine.errors import InvalidInput
from service.grpc.server import _OURS as OUR_SERVICES
from service.replicas.ledger import LONG_FROM, NEVER, Ledger, Report
from service.replicas.options import ReplicaOptions
from service.replicas.price import (
    BYTES_PER_TOKEN,
    UNKNOWN_BYTES,
    Price,
    price_of_message,
    price_of_scope,
    takes_stream,
)
from service.replicas.proxy import ReplicaErrors
from service.replicas.scaling import replicas_wanted

SHORT, PAGE, BOOK = Price(tokens=100), Price(tokens=1_000), Price(tokens=50_000)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def ledger_of(clock: Clock, *names: str, **reported: Report) -> Ledger:
    ledger = Ledger(clock)
    ledger.update({name: reported.get(name, Report(name=name)) for name in names})
    return ledger


def route(ledger: Ledger, request: str, price: Price) -> str:
    chosen = ledger.order(price)[0]
    ledger.send(request, chosen, price)
    return chosen


def test_short_texts_go_where_the_fewest_tokens_wait(clock: Clock) -> None:
    ledger = ledger_of(clock, "a", "b", "c")
    taken = [route(ledger, str(number), SHORT) for number in range(9)]
    assert {name: taken.count(name) for name in "abc"} == {"a": 3, "b": 3, "c": 3}
    for number, name in enumerate(taken):
        if name == "b":
            ledger.answered(str(number), "b")
    assert [route(ledger, f"next{number}", SHORT) for number in range(3)] == ["b", "b", "b"]


def test_a_long_text_counts_by_its_tokens_and_not_as_one_request(clock: Clock) -> None:
    ledger = ledger_of(clock, "a", "b")
    holder = route(ledger, "page", PAGE)
    free = "b" if holder == "a" else "a"
    taken = [route(ledger, str(number), SHORT) for number in range(PAGE.tokens // SHORT.tokens)]
    assert set(taken) == {free}


def test_a_text_that_is_read_tile_by_tile_lets_short_ones_pass(clock: Clock) -> None:
    ledger = ledger_of(clock, "a", "b")
    holder = route(ledger, "book", BOOK)
    free = "b" if holder == "a" else "a"
    assert [route(ledger, str(number), SHORT) for number in range(2)] == [free, holder]
    assert route(ledger, "next", BOOK) == free


def test_texts_that_fill_a_unit_share_a_replica_and_leave_one_to_the_short(clock: Clock) -> None:
    ledger = ledger_of(clock, "a", "b")
    route(ledger, "short", SHORT)
    first = route(ledger, "page", PAGE)
    assert {route(ledger, f"page{number}", PAGE) for number in range(1, 7)} == {first}


@pytest.mark.parametrize(("num_short", "num_for_pages"), [(300, 1), (60, 2), (10, 3)])
def test_the_more_short_work_the_more_replicas_are_left_to_it(
    clock: Clock, num_short: int, num_for_pages: int
) -> None:
    ledger = ledger_of(clock, *"abcd")
    for number in range(num_short):
        ledger.answered(f"short{number}", route(ledger, f"short{number}", SHORT))
    taken = {route(ledger, f"page{number}", PAGE) for number in range(8)}
    assert len(taken) == num_for_pages


def test_they_spread_when_no_short_ones_come(clock: Clock) -> None:
    ledger = ledger_of(clock, "a", "b")
    route(ledger, "short", SHORT)
    clock.now += 61
    taken = [route(ledger, f"page{number}", PAGE) for number in range(4)]
    assert taken.count("a") == taken.count("b") == 2


def test_they_take_the_free_replica_rather_than_wait_for_many_others(clock: Clock) -> None:
    ledger = ledger_of(clock, "a", "b")
    route(ledger, "short", SHORT)
    taken = [route(ledger, f"page{number}", PAGE) for number in range(12)]
    assert len(set(taken)) == 2


def test_a_model_that_cannot_read_tile_by_tile_makes_all_long_texts_fill_units(
    clock: Clock,
) -> None:
    reports = {name: Report(name=name, tiled_from=NEVER) for name in "ab"}
    ledger = ledger_of(clock, "a", "b", **reports)
    route(ledger, "short", SHORT)
    assert len({route(ledger, f"book{number}", BOOK) for number in range(4)}) == 1


def test_what_others_sent_is_known_from_reports(clock: Clock) -> None:
    report = Report(name="a", short=4_000, at=clock.now)
    ledger = ledger_of(clock, "a", "b", a=report)
    assert [route(ledger, str(number), SHORT) for number in range(5)] == ["b"] * 5
    assert ledger.load_of("a").short == 4_000


def test_what_was_sent_since_the_report_is_added_and_what_was_before_is_not(clock: Clock) -> None:
    ledger = ledger_of(clock, "a")
    ledger.send("early", "a", SHORT)
    clock.now += 1
    ledger.update({"a": Report(name="a", short=100, at=clock.now)})
    ledger.send("late", "a", SHORT)
    assert ledger.load_of("a").short == 200
    ledger.answered("early", "a")
    assert ledger.load_of("a").short == 100
    ledger.answered("late", "a")
    assert ledger.load_of("a").tokens == 0


def test_a_long_text_that_is_nearly_read_weighs_little(clock: Clock) -> None:
    ledger = ledger_of(clock, "a")
    ledger.send("book", "a", BOOK)
    clock.now += 1
    ledger.update({"a": Report(name="a", long=1_500, at=clock.now)})
    assert ledger.load_of("a").long == pytest.approx(1_500)


def test_a_request_that_goes_elsewhere_than_planned_counts_there(clock: Clock) -> None:
    ledger = ledger_of(clock, "a", "b")
    ledger.send("book", "a", BOOK)
    ledger.send("book", "b", BOOK)
    assert (ledger.load_of("a").tokens, ledger.load_of("b").tokens) == (0, BOOK.tokens)
    ledger.update({"a": Report(name="a")})  # b is gone
    ledger.answered("book", "b")
    assert ledger.order(BOOK) == ["a"]


def test_no_replicas(clock: Clock) -> None:
    ledger = ledger_of(clock)
    assert ledger.order(BOOK) == []
    ledger.send("book", "a", BOOK)
    ledger.answered("book")


def test_a_run_is_asked_of_the_replica_that_its_id_names(clock: Clock) -> None:
    ledger = ledger_of(clock, "host-a", "host-b")
    price = price_of_scope({"path": "/v1/benchmarks/bench-0123456789ab-host-b", "method": "GET"})
    assert [ledger.order(price) for _ in range(4)] == [["host-b"]] * 4
    message = b"\n\x1abench-0123456789ab-host-a"
    price = price_of_message("/lln.v1.Benchmarks/Get", message)
    assert [ledger.order(price) for _ in range(4)] == [["host-a"]] * 4
    price = price_of_scope({"path": "/v1/benchmarks/bench-0123456789ab-host-c", "method": "GET"})
    assert set(ledger.order(price)) == {"host-a", "host-b"}, "either says that it is elsewhere"


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches/batch-1", "/v1/claims"])
def test_what_one_replica_keeps_is_asked_of_it(clock: Clock, path: str) -> None:
    ledger = ledger_of(clock, "a", "b", b=Report(name="b", keeps=True))
    price = price_of_scope({"path": path, "method": "GET"})
    assert [ledger.order(price) for _ in range(4)] == [["b"]] * 4
    ledger.update({"a": Report(name="a")})
    assert ledger.order(price) == ["a"], "b is gone"


def scope_of(method: str = "POST", path: str = "/v1/embeddings", **headers: str) -> dict[str, Any]:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": method, "path": path, "headers": pairs}


@pytest.mark.parametrize(
    ("scope", "num_bytes"),
    [
        (scope_of(content_length="44000"), 44_000),
        (scope_of(content_length="0"), 0),
        (scope_of(content_length="-5"), UNKNOWN_BYTES),
        (scope_of(content_length="9" * 40), UNKNOWN_BYTES),
        (scope_of(transfer_encoding="chunked"), UNKNOWN_BYTES),
        (scope_of("GET"), 0),
        ({}, 0),
    ],
)
def test_the_price_of_a_body(scope: dict[str, Any], num_bytes: int) -> None:
    assert price_of_scope(scope).tokens == round(num_bytes / BYTES_PER_TOKEN)


def test_a_diagnosis_is_long_however_short_its_text(clock: Clock) -> None:
    ledger = ledger_of(clock, "a", "b")
    price = price_of_scope(scope_of(path="/v1/diagnostics", content_length="80"))
    route(ledger, "diagnosis", price)
    assert any(ledger.load_of(name).long for name in "ab")


def test_which_methods_take_streams() -> None:
    for service in OUR_SERVICES:
        for method in service.methods:
            name = f"/{service.full_name}/{method.name}"
            assert takes_stream(name) == method.client_streaming, name


@pytest.mark.parametrize(
    ("tokens", "current", "wanted"),
    [
        ([], 1, 1),
        ([900], 1, 1),
        ([1_001], 1, 2),
        ([9_000, 500], 2, 4),  # not more than the most
        ([500, 450], 2, 2),  # one would do, but hardly
        ([300, 200], 2, 1),
        ([0, 0, 0], 3, 1),
    ],
)
def test_replicas_follow_the_tokens_that_wait(
    tokens: list[float], current: int, wanted: int
) -> None:
    found = replicas_wanted(tokens, current=current, tokens_each=1_000, least=1, most=4)
    assert found == wanted


@pytest.mark.parametrize(
    "options",
    [
        {"replicas": 0},
        {"replicas": "2"},
        {"cpus": 0},
        {"cpus": 1.5},
        {"gpus": -1},
        {"replicas": 3, "max_replicas": 2},
        {"report_s": -1},
        {"scale_up_s": float("nan")},
        {"scale_down_s": "soon"},
    ],
)
def test_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        ReplicaOptions(**options)
    assert refused.value.code == "invalid_option"


class Replicas:
    """In place of Serve's proxy: replicas that die before or while they answer."""

    def __init__(self, *fates: str) -> None:
        self.fates = list(fates)
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while (message := await receive()).get("more_body", False):
            body += message["body"]
        self.bodies.append(body + message.get("body", b""))
        fate = self.fates.pop(0)
        if fate == "dies":
            return
        if fate == "breaks":
            raise RuntimeError("the proxy broke")
        status = {"late": 408, "is gone": 404, "finds nothing": 404}.get(fate, 200)
        kind = b"application/json" if status == 200 else b"text/plain"
        headers = [(b"content-type", kind)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if fate == "dies half-way":
            raise ConnectionError("the replica died")
        body = b"Path '/embed' not found. Ping ..." if fate == "is gone" else b"{}"
        await send({"type": "http.response.body", "body": body})


def ask(replicas: Replicas, scope: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    parts = [
        {"type": "http.request", "body": b'{"input":', "more_body": True},
        {"type": "http.request", "body": b' "x"}', "more_body": False},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(ReplicaErrors(replicas)(scope, receive, send))
    return sent[0]["status"], json.loads(b"".join(part.get("body", b"") for part in sent))


SHORT_SCOPE = scope_of(content_length="15")
LONG_SCOPE = scope_of(content_length=str(round(LONG_FROM * BYTES_PER_TOKEN) + 9))


def test_a_short_request_goes_to_another_replica_once() -> None:
    replicas = Replicas("dies", "answers")
    assert ask(replicas, SHORT_SCOPE) == (200, {})
    assert replicas.bodies == [b'{"input": "x"}'] * 2


@pytest.mark.parametrize(
    ("fates", "scope"),
    [
        (("dies", "dies"), SHORT_SCOPE),
        (("breaks", "dies"), SHORT_SCOPE),
        (("dies",), LONG_SCOPE),
        (("dies",), scope_of(path="/v1/benchmarks", content_length="15")),
        (("dies",), scope_of(path="/v1/diagnostics", content_length="15")),
    ],
)
def test_otherwise_the_caller_is_told(fates: tuple[str, ...], scope: dict[str, Any]) -> None:
    status, answer = ask(Replicas(*fates), scope)
    assert (status, answer["error"]["code"]) == (503, "replica_lost")


def test_an_answer_that_has_begun_breaks() -> None:
    with pytest.raises(ConnectionError):
        ask(Replicas("dies half-way"), SHORT_SCOPE)


def test_without_its_application_serve_answers_that_it_stops() -> None:
    status, answer = ask(Replicas("is gone"), SHORT_SCOPE)
    assert (status, answer["error"]["code"]) == (503, "unavailable")
    assert ask(Replicas("finds nothing"), SHORT_SCOPE) == (404, {}), "another application's own"


def test_the_deadline_of_serve_is_an_error_of_ours() -> None:
    status, answer = ask(Replicas("late"), SHORT_SCOPE)
    assert (status, answer["error"]["code"]) == (504, "timeout")
