"""The claims, checked: here one after the other, or in a process of their own.

Run as `python -m engine.claims.check`, this module is that process.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict
from time import perf_counter

import torch
from torch import Tensor

from engine.async_engine import AsyncEngine
from engine.claims import (
    attention_fisher,
    factor_form,
    linear_matching,
    linear_model,
    natural_attention,
    natural_gradient,
    optimisers,
    published_tables,
    rank_collapse,
    softmax_model,
)
from engine.claims.claim import Claim, ClaimRow, HeadSample, Material, row_of
from engine.errors import DeviceFailure, unknown_name
from engine.execution.inputs import PreparedText
from engine.execution.model_runner import pack
from engine.model.embedding_model import EmbeddingModel

CLAIMS: tuple[Claim, ...] = (
    *natural_attention.CLAIMS,
    *rank_collapse.CLAIMS,
    *natural_gradient.CLAIMS,
    *optimisers.CLAIMS,
    *attention_fisher.CLAIMS,
    *softmax_model.CLAIMS,
    *linear_model.CLAIMS,
    *linear_matching.CLAIMS,
    *published_tables.CLAIMS,
    *factor_form.CLAIMS,
)

MAX_TOKENS = 256
"""Claims look at whole attention matrices, so only the beginning of a document is read."""

_LOWEST_PRIORITY = 19
_MAX_LINE_BYTES = 2**24


def find_claims(asked: Sequence[str] | None) -> tuple[Claim, ...]:
    """The claims with these ids or id prefixes (a paper's name); all claims for None."""
    if asked is None:
        return CLAIMS
    for name in asked:
        if not any(_is_named(claim, name) for claim in CLAIMS):
            papers = dict.fromkeys(claim.id.split(".")[0] for claim in CLAIMS)
            raise unknown_name("claim", name, papers, param="only", code="unknown_claim")
    return tuple(claim for claim in CLAIMS if any(_is_named(claim, name) for name in asked))


def _is_named(claim: Claim, name: str) -> bool:
    return claim.id == name or claim.id.startswith(f"{name}.")


async def check_claims(
    engine: AsyncEngine,
    *,
    only: Sequence[str] | None = None,
    text: str | None = None,
    model: str | None = None,
    thorough: bool = False,
    progress: Callable[[ClaimRow], None] | None = None,
) -> list[ClaimRow]:
    """Check the claims in a process of their own; with a `text`, also on the heads that read it.

    Only those heads are computed on the device.
    """
    claims = find_claims(only)
    heads: tuple[HeadSample, ...] = ()
    if text is not None:
        heads = await sample_heads(engine, text, model=model, every_head=thorough)
    rows: list[ClaimRow] = []
    async for row in check_in_subprocess(claims, Material(heads=heads, thorough=thorough)):
        rows.append(row)
        if progress is not None:
            progress(row)
    return rows


async def sample_heads(
    engine: AsyncEngine, text: str, *, model: str | None = None, every_head: bool = False
) -> tuple[HeadSample, ...]:
    """Queries and keys of heads that read the beginning of a text: one head a layer, or all."""
    prepared = await engine.prepare(text, model=model)

    def samples(chosen: EmbeddingModel) -> Iterator[tuple[HeadSample, ...]]:
        return head_samples(chosen, prepared, every_head=every_head)

    found = engine.measure(samples, model=model, kind="diagnosis", tokens=MAX_TOKENS)
    return tuple([sample async for sample in found])


def claim_rows(claims: Sequence[Claim], material: Material) -> Iterator[ClaimRow]:
    """Check one claim for each row that the caller takes."""
    for claim in claims:
        started_at = perf_counter()
        finding = claim.check(material, material.generator(claim.id))
        yield row_of(claim, finding, perf_counter() - started_at)


def document_start() -> str:
    """The default document: real English that every Python brings along."""
    from pydoc_data.topics import topics

    return topics["execmodel"]


@torch.no_grad()
def head_samples(
    model: EmbeddingModel, text: PreparedText, *, every_head: bool = False
) -> Iterator[tuple[HeadSample, ...]]:
    """Queries and keys of a document, layer by layer: of one head, or of all heads.

    The one head is another in each layer.
    """
    beginning = PreparedText.whole(text.ids[:MAX_TOKENS])
    ids, bounds = pack([beginning], model.encoder.device)
    seen: list[tuple[Tensor, Tensor]] = []
    states = model.encoder.walk(ids, bounds, tap=lambda _, q, k, v: seen.append((q, k)))
    num_heads = model.info.num_heads
    for layer, _ in enumerate(states):
        q, k = (rows.double().cpu() for rows in seen.pop())
        heads = range(num_heads) if every_head else (layer % num_heads,)
        yield tuple(
            HeadSample(layer=layer, head=head, q=q[:, head], k=k[:, head]) for head in heads
        )


async def check_in_subprocess(
    claims: Sequence[Claim], material: Material
) -> AsyncIterator[ClaimRow]:
    """Yield each claim's row as soon as it is known; closing the iterator ends the process.

    Checking takes seconds of Python and of small matrices. On a thread of the server it would hold
    the interpreter's lock, and its single-threaded LAPACK would change the number of threads that
    torch uses for the model. The process has the lowest priority.
    """
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engine.claims.check"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_MAX_LINE_BYTES,
    )
    assert child.stdin is not None, "a pipe"
    assert child.stdout is not None, "a pipe"
    try:
        child.stdin.write(pickle.dumps(([claim.id for claim in claims], material)))
        child.stdin.write_eof()
        async for line in child.stdout:
            yield ClaimRow(**json.loads(line))
        if await child.wait():
            raise DeviceFailure(f"The process that checks claims ended with {child.returncode}.")
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


def main() -> None:
    """Read claims and material from standard input; write each row as a line of JSON."""
    os.nice(_LOWEST_PRIORITY)
    torch.set_num_threads(1)
    ids, material = pickle.load(sys.stdin.buffer)  # only the parent process writes to it
    for row in claim_rows(find_claims(ids), material):
        print(json.dumps(asdict(row), allow_nan=False), flush=True)


if __name__ == "__main__":
    main()
