"""Errors over gRPC: status, message and trailing metadata."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import grpc
import httpx
import pytest
from grpc import StatusCode

from engine.errors import DeadlineExceeded, LLNError, RequestCancelled
from service.grpc.handlers import _why_cancelled
from service.pb.lln.v1 import embeddings_pb2 as pb
from service.pb.lln.v1 import models_pb2
from tests.service.stubs import embeddings_stub, models_stub

SOFTMAX = "sentence-transformers/all-MiniLM-L6-v2"
EMBED = "/lln.v1.Embeddings/Embed"
LIMIT = 8 * 1024 * 1024


def text(value: str = "a") -> pb.Input:
    return pb.Input(text=value)


def ids(*values: int) -> pb.Input:
    return pb.Input(token_ids=pb.TokenIds(ids=values))


def failure(call: Any, *arguments: Any, **options: Any) -> Any:
    with pytest.raises(grpc.RpcError) as raised:
        call(*arguments, **options)
    return raised.value


def details_of(error: Any) -> dict[str, str]:
    """Returns the trailing metadata under the names of the HTTP envelope."""
    pairs = {key: unquote(value) for key, value in error.trailing_metadata()}
    names = ("code", "param", "limit", "actual")
    return {name: pairs[f"lln-error-{name}"] for name in names if f"lln-error-{name}" in pairs}


def details_of_http(body: Mapping[str, Any]) -> dict[str, str]:
    names = ("code", "param", "limit", "actual")
    return {name: str(body[name]) for name in names if body[name] is not None}


BAD_REQUESTS: dict[str, tuple[pb.EmbedRequest, dict[str, Any], StatusCode, str]] = {
    "no inputs": (
        pb.EmbedRequest(),
        {"input": []},
        StatusCode.INVALID_ARGUMENT,
        "empty_input",
    ),
    "empty string": (
        pb.EmbedRequest(input=[text(), text("")]),
        {"input": ["a", ""]},
        StatusCode.INVALID_ARGUMENT,
        "empty_text",
    ),
    "too many inputs": (
        pb.EmbedRequest(input=[text()] * 3_000),
        {"input": ["a"] * 3_000},
        StatusCode.INVALID_ARGUMENT,
        "too_many_inputs",
    ),
    "unknown model": (
        pb.EmbedRequest(model="gibt-es-nicht", input=[text()]),
        {"model": "gibt-es-nicht", "input": ["a"]},
        StatusCode.NOT_FOUND,
        "model_not_found",
    ),
    "no dimensions": (
        pb.EmbedRequest(input=[text()], options=pb.EmbedOptions(dimensions=0)),
        {"input": ["a"], "dimensions": 0},
        StatusCode.INVALID_ARGUMENT,
        "invalid_dimensions",
    ),
    "too many dimensions": (
        pb.EmbedRequest(input=[text()], options=pb.EmbedOptions(dimensions=385)),
        {"input": ["a"], "dimensions": 385},
        StatusCode.INVALID_ARGUMENT,
        "invalid_dimensions",
    ),
    "unknown prompt": (
        pb.EmbedRequest(input=[text()], options=pb.EmbedOptions(prompt_name="café")),
        {"input": ["a"], "prompt_name": "café"},
        StatusCode.INVALID_ARGUMENT,
        "unknown_prompt",
    ),
    "token id too large": (
        pb.EmbedRequest(input=[ids(2005), ids(2007, 30_522)]),
        {"input": [[2005], [2007, 30_522]]},
        StatusCode.INVALID_ARGUMENT,
        "invalid_token_id",
    ),
    "token id beyond 32 bits": (
        pb.EmbedRequest(input=[ids(2**40)]),
        {"input": [[2**40]]},
        StatusCode.INVALID_ARGUMENT,
        "invalid_token_id",
    ),
    "negative token id": (
        pb.EmbedRequest(input=[ids(-1)]),
        {"input": [[-1]]},
        StatusCode.INVALID_ARGUMENT,
        "invalid_token_id",
    ),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_both_protocols_report_the_same_error(
    name: str, embeddings: Any, http: httpx.Client
) -> None:
    request, body, status, code = BAD_REQUESTS[name]
    error = failure(embeddings.Embed, request)
    refusal = http.post("/v1/embeddings", json=body).json()["error"]

    assert error.code() == status
    assert error.details() == refusal["message"]
    assert details_of(error) == details_of_http(refusal)
    assert details_of(error)["code"] == code


@pytest.mark.parametrize(
    ("request_message", "param"),
    [
        (pb.EmbedRequest(input=[text(), pb.Input()]), "input[1]"),
        (pb.EmbedRequest(input=[text()], options=pb.EmbedOptions(truncate=9)), "truncate"),  # type: ignore[arg-type]
        (pb.EmbedRequest(input=[text()], options=pb.EmbedOptions(format=9)), "format"),  # type: ignore[arg-type]
    ],
)
def test_errors_of_fields_that_only_protobuf_has(
    request_message: pb.EmbedRequest, param: str, embeddings: Any
) -> None:
    error = failure(embeddings.Embed, request_message)

    assert error.code() == StatusCode.INVALID_ARGUMENT
    assert details_of(error)["code"] == "invalid_field"
    assert details_of(error)["param"] == param
    if param in ("truncate", "format"):
        assert "_UNSPECIFIED, " in details_of(error)["limit"], "the names that there are"


def with_text(data: bytes) -> bytes:
    """Returns an EmbedRequest with these bytes as its text, which protobuf would not encode."""
    form = b"\x0a" + bytes([len(data)]) + data  # field 1 of Input
    return b"\x12" + bytes([len(form)]) + form  # field 2 of EmbedRequest


@pytest.mark.parametrize(
    ("data", "complaint"), [(with_text(b"caf\xe9"), "UTF-8"), (b"\xff\xff\xff", "EmbedRequest")]
)
def test_an_undecodable_message_is_an_invalid_argument(
    data: bytes, complaint: str, channel: grpc.Channel
) -> None:
    embed = channel.unary_unary(EMBED, request_serializer=None, response_deserializer=None)
    error = failure(embed, data)

    assert error.code() == StatusCode.INVALID_ARGUMENT
    assert complaint in error.details()
    assert details_of(error)["code"] == "invalid_message"


def test_the_same_bytes_with_good_text_are_served(channel: grpc.Channel) -> None:
    embed = channel.unary_unary(
        EMBED, request_serializer=None, response_deserializer=pb.EmbedResponse.FromString
    )
    assert len(embed(with_text("café".encode())).embeddings) == 1


def test_message_above_the_limit(embeddings: Any) -> None:
    request = pb.EmbedRequest(input=[text("x" * (LIMIT + 1_000))])
    error = failure(embeddings.Embed, request)

    assert error.code() == StatusCode.RESOURCE_EXHAUSTED
    assert details_of(error) == {
        "code": "body_too_large",
        "limit": str(LIMIT),
        "actual": str(request.ByteSize()),
    }


def test_message_far_above_the_limit_is_refused_by_grpc_itself(embeddings: Any) -> None:
    error = failure(embeddings.Embed, pb.EmbedRequest(input=[text("x" * (LIMIT + 2 * 2**20))]))

    assert error.code() == StatusCode.RESOURCE_EXHAUSTED
    assert str(LIMIT + 2**20) in error.details()
    assert details_of(error) == {}


def test_an_item_above_the_limit_gets_an_error_in_order(embeddings: Any) -> None:
    requests = (
        pb.EmbedStreamRequest(id=str(number), input=text("x" * size))
        for number, size in enumerate((1, LIMIT + 1_000, 1))
    )
    answers = list(embeddings.EmbedStream(requests))
    assert [answer.error.code for answer in answers] == ["", "body_too_large", ""]


@pytest.mark.parametrize("name", ["/lln.v1.Embeddings/Embroider", "/no.such.Service/Call"])
def test_unknown_method(name: str, channel: grpc.Channel, http: httpx.Client) -> None:
    counted = 'method="unmatched",protocol="grpc"}'
    before = count_of(http, counted)
    error = failure(channel.unary_unary(name, None, None), b"")

    assert error.code() == StatusCode.UNIMPLEMENTED
    assert details_of(error) == {"code": "method_not_found"}
    assert name in error.details()
    assert count_of(http, counted) == before + 1


def test_the_name_of_an_unknown_method_is_shortened(channel: grpc.Channel) -> None:
    error = failure(channel.unary_unary("/x.Y/" + "Z" * 3_000, None, None), b"")

    assert details_of(error) == {"code": "method_not_found"}
    assert len(error.details()) < 120


def count_of(http: httpx.Client, labels: str) -> float:
    lines = http.get("/metrics").text.splitlines()
    counts = (line for line in lines if line.startswith("lln_requests_total") and labels in line)
    return sum(float(line.split()[-1]) for line in counts)


def test_errors_of_other_services(channel: grpc.Channel) -> None:
    stub = models_stub(channel)
    error = failure(stub.Get, models_pb2.GetModelRequest(model="nope"))

    assert error.code() == StatusCode.NOT_FOUND
    assert details_of(error)["param"] == "model"
    error = failure(stub.Tokenize, models_pb2.TokenizeRequest(model="nope", text="a"))
    assert error.code() == StatusCode.NOT_FOUND


def test_a_very_long_value_is_shortened_to_what_metadata_can_carry(embeddings: Any) -> None:
    error = failure(embeddings.Embed, pb.EmbedRequest(model="界" * 100_000, input=[text()]))

    assert error.code() == StatusCode.NOT_FOUND
    assert "界" in details_of(error)["actual"]


def test_deadline_of_a_millisecond(embeddings: Any) -> None:
    request = pb.EmbedRequest(input=[text("word " * 5_000)])
    assert failure(embeddings.Embed, request, timeout=0.001).code() == StatusCode.DEADLINE_EXCEEDED
    assert len(embeddings.Embed(pb.EmbedRequest(input=[text()])).embeddings) == 1


def test_every_call_that_misses_its_deadline_is_counted(
    embeddings: Any, http: httpx.Client
) -> None:
    def counted(code: str) -> float:
        return count_of(http, f'code="{code}",method="lln.v1.Embeddings/Embed",protocol="grpc"}}')

    def given_up() -> float:
        return counted("cancelled") + counted("deadline_exceeded")

    before = given_up()
    long_text = pb.EmbedRequest(model=SOFTMAX, input=[text("word " * 10_000)])
    for _ in range(3):
        error = failure(embeddings.Embed, long_text, timeout=0.2)
        assert error.code() == StatusCode.DEADLINE_EXCEEDED
    until = time.monotonic() + 30
    while given_up() < before + 3 and time.monotonic() < until:
        time.sleep(0.05)
    assert given_up() == before + 3


class Remaining:
    """A context that only has a deadline."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds

    def time_remaining(self) -> float | None:
        return self._seconds


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [
        (None, RequestCancelled),
        (60.0, RequestCancelled),
        (0.2, RequestCancelled),
        (0.02, DeadlineExceeded),  # the client's own clock was ahead
        (0.0, DeadlineExceeded),
        (-1.0, DeadlineExceeded),
    ],
)
def test_why_a_call_was_cancelled(seconds: float | None, reason: type[LLNError]) -> None:
    context: Any = Remaining(seconds)
    assert _why_cancelled(context) is reason


def test_limits_of_the_servers_own_settings(start_server: Any) -> None:
    server = start_server(
        LLN_MODELS="sentence-transformers/all-MiniLM-L6-v2",
        LLN_MAX_BODY_BYTES="100000",
        LLN_ENGINE__MAX_SOFTMAX_TEXT_TOKENS="32",
        LLN_ENGINE__MAX_TEXT_TOKENS="32",
        LLN_ENGINE__MAX_INPUTS="4",
    )
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = embeddings_stub(channel)
        too_long = pb.EmbedRequest(input=[text("word " * 100)])

        error = failure(stub.Embed, too_long)
        assert error.code() == StatusCode.INVALID_ARGUMENT
        assert details_of(error) == {
            "code": "text_too_long",
            "param": "input[0]",
            "limit": "32",
            "actual": "102",
        }

        error = failure(stub.Embed, pb.EmbedRequest(input=[text()] * 5))
        assert (details_of(error)["limit"], details_of(error)["actual"]) == ("4", "5")

        error = failure(stub.Embed, pb.EmbedRequest(input=[text("x" * 100_001)]))
        assert error.code() == StatusCode.RESOURCE_EXHAUSTED
        assert "100000" in error.details()

        too_long.options.truncate = pb.TRUNCATE_END
        cost = stub.Embed(too_long).embeddings[0].accounting
        assert (cost.tokens, cost.tokens_embedded) == (102, 32)
        # Thirty words remain; the rest begins at the thirty-first.
        assert cost.dropped.start in (149, 150)
        assert cost.dropped.end >= 499
