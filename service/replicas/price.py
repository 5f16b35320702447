"""What a request is likely to cost, from what is known before its body is read.

A replica knows the exact tokens soon after. Until then, and for choosing the replica, the announced
length is enough: what matters is whether a request is a sentence or a book.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

BYTES_PER_TOKEN = 4.4
"""English text in a JSON body: 4.2 to 4.6 over the corpora of the benchmarks."""

UNKNOWN_BYTES = 64 * 1024
"""Taken for a body that does not announce its length: callers stream what is long."""

_CALLS = ("/v1/diagnostics", "/v1/attention", "/v1/structure", "/v1/benchmarks", "/v1/claims")
"""They are exclusive steps on the device, whatever their texts' lengths."""

_KEPT = ("/v1/batches", "/v1/files", "/v1/claims")
"""What they are about is kept by one replica."""

_RUNS = "/v1/benchmarks/"
_BENCHMARKS = "/lln.v1.Benchmarks/"
_GRPC_CALLS = ("/lln.v1.Diagnostics/", _BENCHMARKS)
_IN_PIECES = "EmbedDocument"
_STREAMS = (_IN_PIECES, "ServerReflectionInfo")


@dataclass(frozen=True, kw_only=True, slots=True)
class Price:
    """What routing needs to know of a request."""

    tokens: int = 0
    is_call: bool = False
    """Whether it is exclusive work on the device, such as a diagnosis."""

    mentions: str = ""
    """Text that may hold the name of the replica which alone can answer."""

    is_kept: bool = False
    """Whether it is about what one replica keeps for all: files, batches, claims."""


def price_of_scope(scope: Mapping[str, Any]) -> Price:
    """The price of an HTTP request."""
    path = scope.get("path", "")
    return Price(
        tokens=tokens_in(_announced(scope.get("method", ""), scope.get("headers", ()))),
        is_call=scope.get("method") == "POST" and path.startswith(_CALLS),
        mentions=path if path.startswith(_RUNS) else "",
        is_kept=path.startswith(_KEPT),
    )


def price_of_message(method: str, first: bytes) -> Price:
    """The price of a gRPC call by its first message; `method` is written /package.Service/Name."""
    is_in_pieces = method.endswith(f"/{_IN_PIECES}")
    return Price(
        tokens=tokens_in(max(len(first), UNKNOWN_BYTES) if is_in_pieces else len(first)),
        is_call=method.startswith(_GRPC_CALLS),
        mentions=first.decode("utf-8", "replace") if method.startswith(_BENCHMARKS) else "",
    )


def takes_stream(method: str) -> bool:
    """Whether a gRPC method takes more than one message."""
    name = method.rpartition("/")[2]
    return name.endswith("Stream") or name in _STREAMS


def tokens_in(num_bytes: int) -> int:
    return round(num_bytes / BYTES_PER_TOKEN)


def _announced(method: str, headers: Iterable[tuple[bytes, bytes]]) -> int:
    chunked = False
    for name, value in headers:
        if name == b"content-length":
            return int(value) if value.isdigit() and len(value) < 16 else UNKNOWN_BYTES
        chunked = chunked or name == b"transfer-encoding"
    return UNKNOWN_BYTES if chunked else 0
