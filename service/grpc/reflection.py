"""The standard service grpc.reflection: clients such as grpcurl list services and messages by it.

Newer clients ask for its version v1 first, older ones know v1alpha alone. Both have the same
messages under two names. grpcio-reflection has only v1alpha, from which v1 is made here.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any

from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection, reflection_pb2

from service.fairness import receive_within
from service.grpc.context import Context, write
from service.grpc.decoding import decode_each
from service.grpc.streams import StreamTasks
from service.settings import Settings

_V1 = "grpc.reflection.v1.ServerReflection"


def _v1() -> ServiceDescriptor:
    """That of another package, if there is one: a pool refuses a second."""
    pool = descriptor_pool.Default()
    try:
        return pool.FindServiceByName(_V1)
    except KeyError:
        pool.AddSerializedFile(_file_of_v1().SerializeToString())
        return pool.FindServiceByName(_V1)


def _file_of_v1() -> FileDescriptorProto:
    file = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    text = text_format.MessageToString(file).replace("v1alpha", "v1")
    file = text_format.Parse(text, FileDescriptorProto())
    file.options.ClearField("deprecated")
    return file


VERSIONS: tuple[ServiceDescriptor, ...] = (
    _v1(),
    reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
)


class ReflectionServicer:
    """grpcio's reflection servicer for one version, with streams that end when the server stops."""

    def __init__(
        self,
        version: ServiceDescriptor,
        services: Iterable[str],
        settings: Settings,
        stream_tasks: StreamTasks,
    ) -> None:
        [method] = version.methods
        self._answer_type = GetMessageClass(method.output_type)
        self._answers = reflection.aio.ReflectionServicer(services)  # type: ignore[attr-defined]  # stubs
        self._settings = settings
        self._stream_tasks = stream_tasks

    async def ServerReflectionInfo(self, requests: AsyncIterable[Any], context: Context) -> None:
        await self._stream_tasks.run(self._answer(requests, context))

    async def _answer(self, requests: AsyncIterable[Any], context: Context) -> None:
        messages = decode_each(receive_within(requests, self._settings.body_timeout_s))
        async for answer in self._answers.ServerReflectionInfo(_as_alpha(messages), context):
            message = self._answer_type.FromString(answer.SerializeToString())
            await write(context, message, within_s=self._settings.request_timeout_s)


async def _as_alpha(
    messages: AsyncIterable[Message],
) -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
    async for message in messages:
        yield reflection_pb2.ServerReflectionRequest.FromString(message.SerializeToString())
