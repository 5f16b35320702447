"""The losses of training, one function each: how far a student is from what it should do.

The teacher gives the targets, at any length. A teacher that has learned a few hundred positions
reads a longer text in overlapping windows. A token's target is then its state in the window where
it is nearest to the middle, and the text's target vector is pooled from these states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.checkpoint.folder import Pooling
from engine.model.encoder import Encoder
from engine.model.pooling import PooledSpan, pool, whole_texts
from engine.training.token_corpus import Batch
from kernels.attention import PackedSequences


@dataclass(frozen=True)
class Targets:
    """The teacher's states and vectors for a batch."""

    states: list[Tensor]  # after each layer, [T, W]
    vectors: Tensor  # [n, W], unit


@dataclass(frozen=True, kw_only=True)
class LossWeights:
    """The weight of each part of a loss."""

    vectors: float = 10.0
    states: float = 0.3
    similarities: float = 1.0


@torch.no_grad()
def teacher_targets(teacher: Encoder, batch: Batch, window: int, pooling: Pooling) -> Targets:
    """The teacher's states and vectors; texts longer than `window` are read in windows."""
    ids = batch.ids.to(teacher.device)
    length = batch.bounds[1] - batch.bounds[0]
    if length <= window:
        states = list(teacher.walk(ids, batch.bounds))
    else:
        states = list(_states_in_windows(teacher, ids, batch.bounds, window))
    return Targets(states, unit_vectors(states[-1], whole_texts(batch.bounds), pooling))


def _states_in_windows(
    teacher: Encoder, ids: Tensor, bounds: Sequence[int], window: int, *, overlap: bool = True
) -> Iterator[Tensor]:
    """States after each layer, joined from windows.

    Each window is read between the text's first and last token, as the teacher was trained.
    """
    rows, used, cuts = [], [], [0]
    for first, end in pairwise(bounds):
        for part in _windows(first + 1, end - 1, window - 2, overlap=overlap):
            rows += [
                torch.tensor([first]),
                torch.arange(part.start, part.end),
                torch.tensor([end - 1]),
            ]
            inside = torch.arange(part.keep_start, part.keep_end)
            used.append(torch.stack([cuts[-1] + 1 + inside - part.start, inside]))
            cuts.append(cuts[-1] + 2 + part.end - part.start)
            if part.start == first + 1:
                used.append(torch.tensor([[cuts[-2]], [first]]))
        used.append(torch.tensor([[cuts[-1] - 1], [end - 1]]))
    source, place = torch.cat(used, dim=1).to(ids.device)
    for seen in teacher.walk(ids[torch.cat(rows).to(ids.device)], cuts):
        joined = seen.new_empty(len(ids), seen.shape[1])
        joined[place] = seen[source]
        yield joined


@dataclass(frozen=True)
class _Window:
    start: int
    end: int
    keep_start: int  # the rows whose states are taken from this window
    keep_end: int


def _windows(first: int, end: int, size: int, *, overlap: bool) -> list[_Window]:
    """Windows over rows `first` to `end`; with `overlap`, each begins in the middle of the last.

    A window keeps the rows that are nearer to its middle than to another window's. The last window
    ends with the text, so it may overlap in any case.
    """
    step = max(size // 2, 1) if overlap else size
    starts = [*range(first, max(end - size, first), step), max(end - size, first)]
    windows = []
    for index, start in enumerate(starts):
        stop = min(start + size, end)
        keep_start = first if index == 0 else (start + starts[index - 1] + size) // 2
        keep_end = end if index == len(starts) - 1 else (starts[index + 1] + stop) // 2
        windows.append(_Window(start, stop, keep_start, keep_end))
    return windows


def unit_vectors(states: Tensor, spans: Sequence[PooledSpan], pooling: Pooling) -> Tensor:
    """Unit vectors of spans, pooled as the model pools.

    Means and first tokens are taken for all spans at once: one at a time, each span would have a
    gradient as large as all states, which would be most of a step's work.
    """
    match pooling:
        case "mean":
            pooled = _means(states.float(), spans)
        case "cls":
            pooled = states[[span.start for span in spans]].float()
        case _:
            pooled = pool(states, spans, pooling)
    return F.normalize(pooled, dim=-1)


def _means(states: Tensor, spans: Sequence[PooledSpan]) -> Tensor:
    # Written at once: each copy to a GPU would wait for it.
    rows = [torch.full((span.end - span.start,), at) for at, span in enumerate(spans)]
    columns = [torch.arange(span.start, span.end) for span in spans]
    weights = [
        span.weights(span.start, span.end).squeeze(1) / (span.end - span.start) for span in spans
    ]
    place = torch.stack([torch.cat(rows), torch.cat(columns)]).to(states.device)
    shares = states.new_zeros(len(spans), len(states))
    shares[place[0], place[1]] = torch.cat(weights).to(shares)
    return _product(shares, states)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """A product in the operands' precision, even where autocast runs the model in a lower one."""
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


def attention_loss(student: Encoder, teacher: Encoder, batch: Batch) -> Tensor:
    """Compare the attention of each layer alone, on the inputs of the teacher's layer."""
    ids = batch.ids.to(teacher.device)
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    with torch.no_grad():
        teacher(ids, batch.bounds, tap=lambda _, q, k, v: seen.append((q, k, v)))
    packed = PackedSequences.of(batch.bounds, teacher.device)
    total = ids.new_zeros((), dtype=torch.float32)
    for (q, k, v), mine, theirs in zip(seen, student.attention, teacher.attention, strict=True):
        with torch.no_grad():
            target = theirs(q, k, v, packed)
        total = total + _relative_error(mine(q, k, v, packed), target)
    return total


def states_loss(
    student: Encoder, batch: Batch, targets: Targets, weights: LossWeights, pooling: Pooling
) -> Tensor:
    """Compare the states after every layer, and the texts' vectors."""
    ids = batch.ids.to(student.device)
    total = ids.new_zeros((), dtype=torch.float32)
    for states, target in zip(student.walk(ids, batch.bounds), targets.states, strict=True):
        last = states
        if weights.states:
            total = total + weights.states * _relative_error(states, target)
    return total + fidelity_loss(
        unit_vectors(last, whole_texts(batch.bounds), pooling), targets.vectors, weights
    )


def _relative_error(found: Tensor, wanted: Tensor) -> Tensor:
    """The squared distance, in units of the target's variance."""
    wanted = wanted.detach().float()
    return (found.float() - wanted).square().mean() / wanted.var().clamp_min(1e-12)


def fidelity_loss(vectors: Tensor, targets: Tensor, weights: LossWeights) -> Tensor:
    """Compare unit vectors [n, W] with the teacher's, one by one and by their similarities."""
    total = weights.vectors * (1 - (vectors * targets).sum(-1)).mean()
    if weights.similarities and len(vectors) > 1:
        gap = _product(vectors, vectors.T) - _product(targets, targets.T)
        total = total + weights.similarities * gap.square().mean() * len(vectors)
    return total


def window_loss(
    states: Tensor, teacher: Encoder, batch: Batch, window: int, pooling: Pooling
) -> Tensor:
    """Compare texts, and each window of them, with the teacher's vectors of its windows.

    The windows follow one another without overlap, which halves the teacher's work.
    """
    with torch.no_grad():
        ids = batch.ids.to(teacher.device)
        *_, theirs = _states_in_windows(teacher, ids, batch.bounds, window, overlap=False)
    windows = [
        PooledSpan(part.keep_start, part.keep_end)
        for first, end in batch.spans
        for part in _windows(first + 1, end - 1, window - 2, overlap=False)
    ]
    apart = [
        1 - (unit_vectors(states, spans, pooling) * unit_vectors(theirs, spans, pooling)).sum(-1)
        for spans in (whole_texts(batch.bounds), windows)
    ]
    return torch.stack([one.mean() for one in apart]).mean()


def chunk_targets(
    alone: Tensor,
    contexts: Tensor,
    owners: Tensor,
    *,
    context_share: float,
    mean_share: float,
) -> Tensor:
    """What chunks should be, from unit vectors of each read alone [n, W] and of each document's
    context [d, W]: what they say themselves, with shares of the context and of the document's mean.
    """
    sums = torch.zeros_like(contexts).index_add_(0, owners, alone)
    around = context_share * contexts + mean_share * F.normalize(sums, dim=-1)
    return F.normalize(alone + around[owners], dim=-1)


def chunk_losses(chunks: Tensor, targets: Tensor, weights: LossWeights) -> dict[str, Tensor]:
    """How far chunks [n, W] are from their targets, and whether each finds its own."""
    return {
        "retrieval": retrieval_loss(chunks, targets),
        "context": weights.vectors * (1 - (chunks * targets).sum(-1)).mean(),
    }


def any_loss(
    queries: Tensor, candidates: Tensor, wanted: Tensor, temperature: float = 0.05
) -> Tensor:
    """Each query should find any of its candidates, which `wanted` [n, m] marks, before others."""
    scores = _product(queries, candidates.T) / temperature
    own = scores.masked_fill(~wanted, -torch.inf).logsumexp(dim=1)
    return (scores.logsumexp(dim=1) - own).mean()


def retrieval_loss(
    queries: Tensor,
    candidates: Tensor,
    wanted: Tensor | None = None,
    hidden: Tensor | None = None,
    temperature: float = 0.05,
) -> Tensor:
    """Each query should find its candidate among all of them: unit vectors [n, W], [m, W].

    Without `wanted`, query i wants candidate i. Candidates that `hidden` [n, m] marks are left out.
    """
    scores = _product(queries, candidates.T) / temperature
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    if wanted is None:
        wanted = torch.arange(len(scores), device=scores.device)
    return F.cross_entropy(scores, wanted)
