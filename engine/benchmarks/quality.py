"""How near each attention's vectors are to those of the published softmax model.

The text is Python's own reference manual. Up to the length of the position table both models read
the same windows. Of a longer window the softmax model reads parts, and their mean is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from engine.errors import InvalidInput
from engine.execution.input_checks import check_pools
from engine.execution.inputs import PreparedText
from engine.execution.model_runner import run_batch
from engine.execution.results import finish_vectors
from engine.model.embedding_model import EmbeddingModel
from engine.types import EmbedOptions, Ids, Vector

LEAST_TOKENS = 3
"""The shortest window: one token of the text between two special ones."""

_NUM_TOKENS = 16_384
"""Tokens compared at one length. They make the number of windows, within the bounds below."""
_LEAST_WINDOWS, _MOST_WINDOWS = 4, 32


@dataclass(frozen=True, kw_only=True)
class QualityPlan:
    model: EmbeddingModel
    lengths: tuple[int, ...]
    attentions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class QualityRow:
    attention: str
    tokens: int
    windows: int
    mean_cosine: float
    least_cosine: float
    seconds: float


def quality_rows(plan: QualityPlan) -> Iterator[tuple[QualityRow, ...]]:
    """One row for each point. Yields an empty tuple after every window, to let other work run."""
    check_pools(plan.model)
    content = _content(plan.model)
    teacher = plan.model.with_attention("softmax")
    wanted: dict[int, list[Vector]] = {length: [] for length in plan.lengths}
    for length, kind in product(plan.lengths, plan.attentions):
        windows = _windows(plan.model, content, length)
        for ids in windows[len(wanted[length]) :]:
            wanted[length].append(_teacher_vector(teacher, ids))
            yield ()
        student, found, started_at = plan.model.with_attention(kind), [], perf_counter()
        for ids in windows:
            found.append(_vector(student, ids))
            yield ()
        yield (_row(kind, length, found, wanted[length], perf_counter() - started_at),)


def _row(
    kind: str, length: int, found: Sequence[Vector], wanted: Sequence[Vector], seconds: float
) -> QualityRow:
    cosines = [float(a @ b) for a, b in zip(found, wanted, strict=True)]
    return QualityRow(
        attention=kind,
        tokens=length,
        windows=len(cosines),
        mean_cosine=float(np.mean(cosines)),
        least_cosine=min(cosines),
        seconds=seconds,
    )


def _content(model: EmbeddingModel) -> Ids:
    from pydoc_data.topics import topics  # a megabyte, which servers seldom need

    encoded = model.tokenizer.encode_batch(["\n\n".join(topics.values())])[0]
    return encoded.content


def _windows(model: EmbeddingModel, content: Ids, length: int) -> list[Ids]:
    """Windows of `length` tokens, special ones included, spread over the whole text."""
    special = model.tokenizer.num_special
    size, shortest, longest = length - special, special + 1, len(content) + special
    if not shortest <= length <= longest:
        raise InvalidInput(
            f"lengths must be {shortest} to {longest} for this suite's text, got {length}",
            param="lengths",
            limit=longest if length > longest else shortest,
            actual=length,
        )
    number = min(max(_NUM_TOKENS // length, _LEAST_WINDOWS), _MOST_WINDOWS, len(content) // size)
    starts = np.linspace(0, len(content) - size, number).astype(int)
    return [content[start : start + size] for start in starts]


def _teacher_vector(teacher: EmbeddingModel, ids: Ids) -> Vector:
    """The mean over parts, weighted by their tokens; a short text is one part.

    The vectors are not normalised before, unlike in engine.training.encode.means_of, which gives
    each part the same weight.
    """
    size = teacher.info.position_table - teacher.tokenizer.num_special
    parts = [ids[start : start + size] for start in range(0, len(ids), size)]
    vectors = [_vector(teacher, part, normalize=len(parts) == 1) for part in parts]
    mean = np.average(vectors, axis=0, weights=[len(part) for part in parts])
    unit: Vector = (mean / np.linalg.norm(mean)).astype(np.float32)
    return unit


def _vector(model: EmbeddingModel, ids: Ids, *, normalize: bool = True) -> Vector:
    whole = PreparedText.whole(model.tokenizer.encode_ids(ids).ids)
    (states,) = run_batch(model, [whole])
    vector: NDArray[np.float32] = finish_vectors(states, EmbedOptions(normalize=normalize))[0]
    return vector
