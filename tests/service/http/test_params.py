"""Errors of a text name the field of the request, over both protocols."""

from __future__ import annotations

from typing import Any

import grpc
import httpx
import pytest

from engine.errors import LLNError, TextTooLong
from service.errors import report_input_as
from service.pb.lln.v1 import models_pb2
from service.pb.tei.v1 import tei_pb2
from tests.service.stubs import models_stub, tei_stub


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/tokenize", {"text": ""}, "text"),
        ("/v1/plan", {"text": ""}, "text"),
        ("/embed", {"inputs": ""}, "inputs"),
        ("/embed_all", {"inputs": ""}, "inputs"),
        ("/embed", {"inputs": ["x", ""]}, "inputs[1]"),
        ("/embed_all", {"inputs": ["x", 7]}, "inputs[1]"),
        ("/embed", {"inputs": []}, "inputs"),
        ("/embed", {"inputs": [99_999_999]}, "inputs"),
        ("/embed", {"inputs": [[99_999_999]]}, "inputs[0]"),
        ("/v1/embeddings", {"input": ["x", ""]}, "input[1]"),
        ("/v1/plan", {}, "tokens"),
        ("/embed", {"inputs": "x", "prompt_name": "input"}, "prompt_name"),
    ],
)
def test_a_failure_names_the_requests_own_field(
    http: httpx.Client, path: str, body: dict[str, Any], param: str
) -> None:
    answer = http.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    if error["code"] == "empty_text":
        assert error["message"].startswith(f"{param} ")


def test_a_failure_names_the_messages_own_field(server: Any) -> None:
    with grpc.insecure_channel(server.grpc_address) as channel:
        models: Any = models_stub(channel)
        tei: Any = tei_stub(channel)
        for method, request, param in (
            (models.Tokenize, models_pb2.TokenizeRequest(), "text"),
            (models.Plan, models_pb2.PlanRequest(text=""), "text"),
            (tei.Embed, tei_pb2.EmbedRequest(), "inputs"),
            (tei.EmbedAll, tei_pb2.EmbedAllRequest(), "inputs"),
        ):
            with pytest.raises(grpc.RpcError) as raised:
                method(request)
            refused: Any = raised.value
            assert ("lln-error-param", param) in refused.trailing_metadata()
            assert refused.details() == f"{param} is an empty string"


def test_other_fields_of_an_error_do_not_change() -> None:
    with pytest.raises(TextTooLong) as raised, report_input_as("inputs", lone=False):
        raise TextTooLong("input[3] has 9 tokens", param="input[3]", limit=8, actual=9)
    error = raised.value
    assert (str(error), error.param) == ("inputs[3] has 9 tokens", "inputs[3]")
    assert (error.code, error.limit, error.actual) == ("text_too_long", 8, 9)


@pytest.mark.parametrize("param", [None, "inputs", "tokens", "an.input[0]"])
def test_errors_of_other_fields_do_not_change(param: str | None) -> None:
    failure = LLNError("no", param=param)
    with pytest.raises(LLNError) as raised, report_input_as("text", lone=True):
        raise failure
    assert raised.value is failure
