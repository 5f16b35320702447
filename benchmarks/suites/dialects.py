"""Processor time of a request in a vendor's words, over that of the same request to our own route.

One saturated server answers both, turn by turn; the load comes from another process on the same
cores, and only the server's own time counts. The spread is the 95 % interval over turns.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from benchmarks.rows import Plan, Row, Target
from benchmarks.servers import Served, our_server
from benchmarks.workbench import Workbench
from service.benchmarks.load import ANSWERED, PROFILES, Request
from service.benchmarks.load_client import HttpClient

_TURNS, _QUICK_TURNS = 12, 2
_CLIENTS = 16
"""Enough to keep the server busy."""
_MOST = Target("<=", 1.05)
_CHUNKS, _RANKED = 20, 8
_RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """The same work asked for in two ways."""

    case: str
    theirs: list[Request]
    ours: list[Request]


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    turns = plan.turns(_QUICK_TURNS if plan.quick else _TURNS)
    with our_server(bench.threads) as served:
        for pair in _pairs(50 if plan.quick else 150):
            yield asyncio.run(_compare(served, pair, turns))


def _pairs(count: int) -> Iterator[_Pair]:
    """`count` short texts each, and fewer documents and rankings, which are longer."""
    texts = list(islice(PROFILES["short"].texts(seed=0), count))
    own = [_request("/v1/embeddings", input=[text]) for text in texts]

    def of_texts(case: str, path: str, field: str = "input", **fields: Any) -> _Pair:
        theirs = [_request(path, **{field: [text]}, **fields) for text in texts]
        return _Pair(case=case, theirs=theirs, ours=own)

    yield of_texts("Voyage, a text", "/v1/embeddings", input_type="document")
    yield of_texts("Jina, a text", "/v1/embeddings", task="retrieval.passage")
    yield of_texts("Cohere, a text", "/v2/embed", "texts", input_type="search_document")
    yield of_texts("Ollama, a text", "/api/embed")
    yield of_texts("vLLM, a text", "/v1/embeddings", truncate_prompt_tokens=-1)
    yield of_texts("infinity, a text", "/embeddings")
    yield of_texts("SageMaker, a text", "/invocations")
    yield from _pairs_of_documents(count // 50)
    yield from _pairs_of_rankings(count // 15)


def _pairs_of_documents(count: int) -> Iterator[_Pair]:
    documents = list(_documents(count))

    def own(context: str) -> list[Request]:
        return [
            _request("/v1/documents", text="".join(chunks), chunking=_spans(chunks, context))
            for chunks in documents
        ]

    yield _Pair(
        case=f"Voyage, a document of {_CHUNKS} chunks",
        theirs=[_request("/v1/contextualizedembeddings", inputs=[one]) for one in documents],
        ours=own("balanced"),
    )
    yield _Pair(
        case=f"Jina, {_CHUNKS} late chunks",
        theirs=[_request("/v1/embeddings", input=one, late_chunking=True) for one in documents],
        ours=own("late"),
    )


def _pairs_of_rankings(count: int) -> Iterator[_Pair]:
    texts = PROFILES["short"].texts(seed=2)
    asked = [
        {"query": next(texts), "documents": list(islice(texts, _RANKED))} for _ in range(count)
    ]
    ours = [_request("/v1/rerank", **fields) for fields in asked]
    for vendor, path, fields in (
        ("Voyage", "/v1/rerank", {"truncation": True}),
        ("Cohere", "/v2/rerank", {}),
    ):
        theirs = [_request(path, **one, **fields) for one in asked]
        yield _Pair(case=f"{vendor}, {_RANKED} texts ranked", theirs=theirs, ours=ours)


def _documents(count: int) -> Iterator[list[str]]:
    """Documents as chunks of some 60 tokens. White space between chunks belongs to them."""
    rng = random.Random(1)
    texts = PROFILES["short"].texts(seed=1)
    for _ in range(count):
        yield [f"{next(texts)} {next(texts)}. "[: rng.randint(200, 400)] for _ in range(_CHUNKS)]


def _spans(chunks: Sequence[str], context: str) -> dict[str, Any]:
    spans, at = [], 0
    for chunk in chunks:
        spans.append({"start": at, "end": at + len(chunk)})
        at += len(chunk)
    return {"type": "spans", "spans": spans, "context": context}


def _request(path: str, **fields: Any) -> Request:
    return Request(path, json.dumps({"model": "default", **fields}).encode())


async def _compare(served: Served, pair: _Pair, turns: int) -> Row:
    """In turns, after one of each to warm up; every other turn begins with ours."""
    client = HttpClient(served.target)
    taken: dict[str, list[float]] = {"theirs": [], "ours": []}
    try:
        for turn in range(turns + 1):
            order = ("theirs", "ours") if turn % 2 else ("ours", "theirs")
            for name in order:
                seconds = await _cpu_s(served, client, getattr(pair, name))
                if turn:
                    taken[name].append(seconds)
    finally:
        client.close()
    theirs, ours = np.array(taken["theirs"]), np.array(taken["ours"])
    return Row(
        case=pair.case,
        measure="processor time in the vendor's words over ours, 95 % interval",
        value=float(theirs.sum() / ours.sum()),
        target=_MOST,
        seconds={name: tuple(seconds) for name, seconds in taken.items()},
        spread=_interval(theirs, ours),
    )


def _interval(theirs: np.ndarray, ours: np.ndarray) -> tuple[float, float]:
    """The interval of the ratio of sums, resampled by turns."""
    drawn = np.random.default_rng(0).integers(0, len(ours), (_RESAMPLES, len(ours)))
    low, high = np.percentile(theirs[drawn].sum(1) / ours[drawn].sum(1), [2.5, 97.5])
    return float(low), float(high)


async def _cpu_s(served: Served, client: HttpClient, requests: Sequence[Request]) -> float:
    """The server's processor seconds for one request."""
    before, waiting = served.cpu_s, iter(requests)

    async def send_repeatedly() -> None:
        for request in waiting:
            answer = await client.post(*request)
            if answer.status != ANSWERED:
                raise RuntimeError(f"{request.path}: {answer.status} {answer.body[:500]!r}")

    await asyncio.gather(*(send_repeatedly() for _ in range(_CLIENTS)))
    return (served.cpu_s - before) / len(requests)
