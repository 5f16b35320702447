"""Callers that flood a server with the largest bodies that it reads, in a process of their own.

They stay until they are answered and then send the next body, or they leave: half of them in the
midst of their body, the others while they wait for the answer. `suites/flood.py` gives the plan as
JSON on standard input and reads from standard output what became of the bodies.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import cycle
from typing import Any, NamedTuple

import grpc
from grpc import aio

from service.benchmarks.load_client import read_answer
from service.pb.lln.v1 import embeddings_pb2 as pb
from service.pb.lln.v1 import models_pb2

LARGEST_BYTES = 32 * 1024 * 1024
"""The server's default limit on a body over HTTP."""

LARGEST_MESSAGE_BYTES = 8 * 1024 * 1024
"""Over gRPC."""

_MAX_INPUTS = 2048
_MARGIN_BYTES = 64  # for the fields around the text
_PIECE_BYTES = 2**18
_LEAVES_AFTER_S = 0.5
_RETRY_AFTER_S = 1.0  # a client that waits less than the server asks for
_TEXT = "ab " * (LARGEST_BYTES // 3 - _MARGIN_BYTES)

_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


class Body(NamedTuple):
    name: str
    target: str
    """The path of the route, or the method."""
    data: bytes
    media_type: str = "application/json"


def http_bodies() -> list[Body]:
    part = _TEXT[: LARGEST_BYTES // _MAX_INPUTS - 4]
    return [
        Body("one text", "/v1/embeddings", _json(input=_TEXT)),
        Body("many texts", "/v1/embeddings", _json(input=[part] * _MAX_INPUTS)),
        Body("token ids", "/v1/embeddings", _json(input=[2023] * (LARGEST_BYTES // 5 - 10))),
        Body("empty lists", "/v1/embeddings", _json(input=[[]] * (LARGEST_BYTES // 3 - 10))),
        Body("text to count", "/v1/plan", _json(text=_TEXT)),
        Body("plain text", "/v1/documents", _TEXT.encode(), "text/plain"),
    ]


def _json(**fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def grpc_bodies() -> list[Body]:
    embeddings = "/lln.v1.Embeddings"
    text = _TEXT[: LARGEST_MESSAGE_BYTES - _MARGIN_BYTES]
    part = text[: LARGEST_MESSAGE_BYTES // _MAX_INPUTS - 16]
    ids = pb.TokenIds(ids=[2023] * (LARGEST_MESSAGE_BYTES // 2 - _MARGIN_BYTES))
    opened = pb.EmbedDocumentRequest(open=pb.DocumentOptions(), text=text.encode())
    messages = {
        ("one text", f"{embeddings}/Embed"): pb.EmbedRequest(input=[pb.Input(text=text)]),
        ("many texts", f"{embeddings}/Embed"): pb.EmbedRequest(
            input=[pb.Input(text=part)] * _MAX_INPUTS
        ),
        ("token ids", f"{embeddings}/Embed"): pb.EmbedRequest(input=[pb.Input(token_ids=ids)]),
        ("text to count", "/lln.v1.Models/Plan"): models_pb2.PlanRequest(text=text),
        ("text of a stream", f"{embeddings}/EmbedStream"): pb.EmbedStreamRequest(
            input=pb.Input(text=text)
        ),
        ("piece of a document", f"{embeddings}/EmbedDocument"): opened,
    }
    bodies = [
        Body(name, target, message.SerializeToString())
        for (name, target), message in messages.items()
    ]
    empty = bytes((pb.EmbedRequest.INPUT_FIELD_NUMBER << 3 | 2, 0))
    return [
        *bodies,
        Body("empty inputs", f"{embeddings}/Embed", empty * (LARGEST_MESSAGE_BYTES // 2)),
    ]


async def flood(plan: Mapping[str, Any]) -> Counter[str]:
    """Sends until the time is up, and counts the bodies by name and outcome."""
    bodies = {"http": http_bodies, "grpc": grpc_bodies}[plan["protocol"]]()
    bodies = [body for body in bodies if body.name in plan.get("only", body.name)]
    send = {"http": _send_http, "grpc": _send_grpc}[plan["protocol"]]
    outcomes: Counter[str] = Counter()
    print("ready", flush=True)
    ends_at = time.monotonic() + plan["seconds"]

    async def call(first: int) -> None:
        for body in _starting_at(bodies, first):
            if time.monotonic() >= ends_at:
                return
            outcome = await _outcome(send, body, plan, first, ends_at)
            outcomes[f"{body.name}: {outcome}"] += 1
            if outcome not in ("answered", "left"):
                await asyncio.sleep(_RETRY_AFTER_S)

    await asyncio.gather(*map(call, range(plan["callers"])))
    return outcomes


def _starting_at(bodies: list[Body], first: int) -> Iterator[Body]:
    order = cycle(bodies)
    for _ in range(first % len(bodies)):
        next(order)
    return order


async def _outcome(
    send: Callable[..., Any], body: Body, plan: Mapping[str, Any], caller: int, ends_at: float
) -> str:
    share = 0.5 if caller % 2 else 1.0
    left_s = ends_at - time.monotonic()
    stays_s = min(_LEAVES_AFTER_S, left_s) if plan["leaves"] else left_s
    try:
        async with asyncio.timeout(stays_s):
            return str(await send(plan, body, share if plan["leaves"] else 1.0))
    except TimeoutError:
        return "left"
    except (OSError, EOFError) as error:
        return type(error).__name__


async def _send_http(plan: Mapping[str, Any], body: Body, share: float) -> str:
    reader, writer = await asyncio.open_connection(plan["host"], plan["port"])
    try:
        head = (
            f"POST {body.target} HTTP/1.1\r\nhost: {plan['host']}:{plan['port']}\r\n"
            f"content-type: {body.media_type}\r\ncontent-length: {len(body.data)}\r\n\r\n"
        )
        writer.write(head.encode())
        sent = memoryview(body.data)[: int(share * len(body.data))]
        writing = asyncio.create_task(_write_pieces(writer, sent))
        try:
            answer = await read_answer(reader)  # it may come before the body's end
        finally:
            writing.cancel()
        if answer.status == 200:
            return "answered"
        return str(json.loads(answer.body)["error"]["code"])
    finally:
        writer.transport.abort()


async def _write_pieces(writer: asyncio.StreamWriter, data: memoryview) -> None:
    """Not in one go, which would copy the whole body for each caller."""
    with suppress(OSError):
        for at in range(0, len(data), _PIECE_BYTES):
            writer.write(data[at : at + _PIECE_BYTES])
            await writer.drain()


async def _send_grpc(plan: Mapping[str, Any], body: Body, share: float) -> str:
    """Half of a message cannot be sent, so all callers that leave have sent theirs."""
    address = f"{plan['host']}:{plan['grpc_port']}"
    async with aio.insecure_channel(address, options=_OWN_CONNECTION) as opened:
        channel: Any = opened  # the stubs want what grpc does not need
        call = channel.stream_stream(body.target)()
        with suppress(asyncio.InvalidStateError, aio.AioRpcError):
            await call.write(body.data)
            await call.done_writing()
            async for _ in call:
                pass
        if await call.code() == grpc.StatusCode.OK:
            return "answered"
        trailers = dict(await call.trailing_metadata() or ())
        return str(trailers.get("lln-error-code", await call.code()))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(flood(json.load(sys.stdin)))))
