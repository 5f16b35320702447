"""Reflection in both of its versions, asked as grpcurl asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2 as pb

from service.grpc.reflection import VERSIONS

SERVICES = {
    *("grpc.health.v1.Health", "lln.v1.Benchmarks", "lln.v1.Diagnostics", "lln.v1.Embeddings"),
    *("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"),
    *("lln.v1.Models", "tei.v1.Embed", "tei.v1.Info", "tei.v1.Rerank", "tei.v1.Tokenize"),
}


class ReflectionClient:
    """Asks one version. On the wire, both have the messages of `v1alpha`."""

    def __init__(self, channel: grpc.Channel, version: str) -> None:
        opened: Any = channel
        self._ask = opened.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            pb.ServerReflectionRequest.SerializeToString,
            pb.ServerReflectionResponse.FromString,
        )

    def ask(self, **question: Any) -> Any:
        [answer] = self._ask(iter([pb.ServerReflectionRequest(host="here", **question)]))
        assert answer.original_request == pb.ServerReflectionRequest(host="here", **question)
        return answer

    def services(self) -> set[str]:
        found = self.ask(list_services="*").list_services_response.service
        return {service.name for service in found}

    def files_of(self, symbol: str) -> Iterator[FileDescriptorProto]:
        """The file of a symbol, and all that it imports."""
        answer = self.ask(file_containing_symbol=symbol)
        for content in answer.file_descriptor_response.file_descriptor_proto:
            yield FileDescriptorProto.FromString(content)


@pytest.fixture(params=["v1", "v1alpha"])
def client(channel: grpc.Channel, request: pytest.FixtureRequest) -> ReflectionClient:
    return ReflectionClient(channel, request.param)


def test_all_services_are_listed(client: ReflectionClient) -> None:
    assert client.services() == SERVICES


def test_every_listed_service_is_described(client: ReflectionClient) -> None:
    for name in client.services():
        described = {
            f"{file.package}.{service.name}": [method.name for method in service.method]
            for file in client.files_of(name)
            for service in file.service
        }
        assert described[name], name
        if name == "lln.v1.Embeddings":
            assert described[name] == ["Embed", "EmbedStream", "EmbedDocument"]


def test_an_unknown_symbol_is_an_error_of_the_answer(client: ReflectionClient) -> None:
    answer = client.ask(file_containing_symbol="lln.v1.Nothing")
    assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def test_the_versions_have_the_same_messages() -> None:
    """Field by field, so that what is read as one version is what was sent as the other."""
    newer, older = (
        {
            message.name: [
                (field.name, field.number, field.type, field.is_repeated)
                for field in message.fields
            ]
            for message in version.file.message_types_by_name.values()
        }
        for version in VERSIONS
    )
    assert newer == older
