"""Calibration without training: the numbers with which LLN+Diag comes closest to its teacher.

The teacher reads real text. In every layer, from the teacher's own queries, keys and values, each
head gets the alpha, beta and mix that bring mix * LLN + (1 - mix) * Diag nearest to the softmax
output it replaces. The best mix has a closed form; alpha and beta are searched on a grid. Then one
factor for all mixes is chosen by what counts in the end: the cosine to the teacher's vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from engine.adapt.batches import Span
from engine.adapt.vectors import pooling_of
from engine.block_size import LongBlock
from engine.checkpoint.calibration import Calibration
from engine.errors import InvalidInput
from engine.model.embedding_model import EmbeddingModel
from engine.model.encoder import Encoder
from engine.model.pooling import pool, whole_texts
from engine.types import Ids, PositionScheme
from kernels.attention import (
    PackedSequences,
    block_diagonal_attention,
    lln_attention,
    softmax_attention,
)

ALPHAS = (0.5, 1.0, 1.5, 2.0, 3.0)
BETAS = (0.5, 1.0, 1.5, 2.0)
SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1)
"""Tried as a factor on every head's mix, since what is best for a layer alone overshoots when all
layers do it."""


@dataclass(frozen=True, kw_only=True)
class CalibrationPlan:
    """What the calibrated model will look like, and on how much text it is measured."""

    block_size: int = 256
    """Where a window of text is no longer than this, there is nothing beyond a block to measure;
    the numbers are then those of blocks of half a window."""

    long_block: LongBlock | None = None
    """Blocks of long texts, which nothing is measured on."""

    rise: float = 0.0
    """How much more the last token of a long text counts than the average one in its vector."""

    num_sinks: tuple[int, int] = (1, 1)
    sample_tokens: int = 512
    num_samples: int = 32
    positions: PositionScheme = "tile"

    @property
    def measured_block(self) -> int:
        return self.block_size if self.block_size < self.sample_tokens else self.sample_tokens // 2

    @property
    def compared_tokens(self) -> int:
        """In each text that the result is compared on, of which LLN has a share beyond a block."""
        return self.sample_tokens if self.block_size < self.sample_tokens else 2 * self.block_size

    def checked(self, teacher: EmbeddingModel) -> CalibrationPlan:
        """The plan, if this model can be calibrated by it."""
        table = teacher.info.position_table
        if self.sample_tokens > table:
            raise InvalidInput(
                f"windows of {self.sample_tokens} tokens must be no longer than the position "
                f"table ({table})",
                code="invalid_calibration_plan",
                param="sample_tokens",
                limit=table,
                actual=self.sample_tokens,
            )
        check_pools_by_mean(teacher, self.rise)
        return self


def check_pools_by_mean(model: EmbeddingModel, rise: float) -> None:
    pooling = model.checkpoint.pooling
    if rise and pooling != "mean":
        raise InvalidInput(
            f"a rise is one of weights in a mean, and {model.name} pools by {pooling}",
            code="invalid_calibration_plan",
            param="rise",
            limit="mean",
            actual=pooling,
        )


@dataclass(frozen=True)
class _HeadFit:
    """The best numbers found so far for each head of a layer."""

    alpha: Tensor  # [H]
    beta: Tensor  # [H]
    mix: Tensor  # [H]
    error: Tensor  # [H] squared distance to the teacher's output

    def better_of(self, other: _HeadFit) -> _HeadFit:
        wins = other.error < self.error
        return _HeadFit(
            *(
                torch.where(wins, theirs, mine)
                for mine, theirs in (
                    (self.alpha, other.alpha),
                    (self.beta, other.beta),
                    (self.mix, other.mix),
                    (self.error, other.error),
                )
            )
        )


@torch.no_grad()
def calibrate(
    teacher: EmbeddingModel,
    texts: Sequence[str],
    plan: CalibrationPlan = CalibrationPlan(),
    progress: Callable[[int, int], None] | None = None,
) -> Calibration:
    """Calibrates against a softmax model on real text."""
    if not set(teacher.info.attention) <= {"softmax", "sliding_window"}:
        raise InvalidInput(
            f"the teacher must attend by softmax, {teacher.name} has {teacher.info.attention}",
            param="attention",
        )
    ids, bounds = sample_windows(teacher, texts, plan.checked(teacher))
    packed = PackedSequences.of(bounds, teacher.encoder.device)
    shifts, fits = [], []
    for layer, (q, k, v) in enumerate(_layer_inputs(teacher.encoder, ids, bounds)):
        shift = -k.mean(0)
        shifts.append(shift)
        if teacher.info.attention[layer] == "sliding_window":
            fits.append(_unused_fit(teacher.info.num_heads, shift))
        else:
            fits.append(_fit_layer(q, k, v, shift, packed, plan))
        if progress is not None:
            progress(layer + 1, teacher.info.num_layers)
    fitted = Calibration(
        alpha=torch.stack([fit.alpha for fit in fits]).cpu(),
        beta=torch.stack([fit.beta for fit in fits]).cpu(),
        mix=torch.stack([fit.mix for fit in fits]).cpu(),
        key_shift=torch.stack(shifts).cpu(),
        block_size=plan.measured_block,
        num_sinks=plan.num_sinks,
        weights_sha256=teacher.checkpoint.sha256,
        positions=plan.positions,
    )
    best = _with_best_share(fitted, teacher, ids, bounds)
    return replace(best, block_size=plan.block_size, long_block=plan.long_block, rise=plan.rise)


@torch.no_grad()
def fidelity(
    teacher: EmbeddingModel, student: EmbeddingModel, ids: Tensor, bounds: Sequence[int]
) -> Tensor:
    """The cosine between both models' vectors of each window: [windows]."""
    pooling = pooling_of(teacher)
    wanted, found = (
        pool(model.encoder(ids, bounds), whole_texts(bounds, model.rise_of), pooling)
        for model in (teacher, student)
    )
    return cosine_similarity(wanted, found, dim=-1)


def sample_windows(
    teacher: EmbeddingModel, texts: Sequence[str], plan: CalibrationPlan
) -> tuple[Tensor, list[int]]:
    """Windows of real text, spread evenly over all of it, each between its own special tokens."""
    content = _content_ids(teacher, texts)
    windows = _cut(teacher, content, _sampled(teacher, content, plan))
    ids = torch.from_numpy(np.concatenate(windows).astype(np.int64))
    return ids.to(teacher.encoder.device), list(range(0, len(ids) + 1, plan.sample_tokens))


def other_windows(
    teacher: EmbeddingModel, texts: Sequence[str], plan: CalibrationPlan
) -> list[Ids]:
    """As many tokens of the text that `sample_windows` leaves out, in windows that LLN has a share
    in."""
    content = _content_ids(teacher, texts)
    used = np.concatenate([np.arange(*span) for span in _sampled(teacher, content, plan)])
    rest: Ids = np.delete(content, used)
    special = teacher.tokenizer.num_special
    tokens = min(plan.compared_tokens, len(rest) + special)
    if tokens <= plan.block_size:
        raise InvalidInput(
            f"blocks of {plan.block_size} tokens show what they cost in longer text alone, and "
            f"calibration leaves {tokens} tokens to compare on",
            code="too_little_text",
            param="block_size",
            limit=tokens,
            actual=plan.block_size,
        )
    size = tokens - special
    count = min(plan.num_samples * plan.sample_tokens // tokens, len(rest) // size)
    return _cut(teacher, rest, _spread(len(rest), size, max(count, 1)))


def _sampled(teacher: EmbeddingModel, content: Ids, plan: CalibrationPlan) -> list[Span]:
    size = plan.sample_tokens - teacher.tokenizer.num_special
    needed = 2 * plan.num_samples * size
    if len(content) < needed:
        raise InvalidInput(
            f"calibration needs {needed} tokens of text, got {len(content)}",
            code="too_little_text",
            limit=needed,
            actual=len(content),
        )
    return _spread(len(content), size, plan.num_samples)


def _spread(length: int, size: int, count: int) -> list[Span]:
    """So many stretches of one size, evenly spread."""
    starts = [index * (length // count) for index in range(count)]
    return [(start, start + size) for start in starts]


def _cut(teacher: EmbeddingModel, content: Ids, spans: Sequence[Span]) -> list[Ids]:
    return [teacher.tokenizer.between_special(content[slice(*span)]) for span in spans]


def _content_ids(teacher: EmbeddingModel, texts: Sequence[str]) -> Ids:
    encoded = teacher.tokenizer.encode_batch(texts)
    return np.concatenate([np.zeros(0, np.int32), *(item.content for item in encoded)])


def _with_best_share(
    fitted: Calibration, teacher: EmbeddingModel, ids: Tensor, bounds: Sequence[int]
) -> Calibration:
    def mean_fidelity(candidate: Calibration) -> float:
        student = teacher.with_calibration(candidate)
        return float(fidelity(teacher, student, ids, bounds).mean())

    candidates = [replace(fitted, mix=fitted.mix * share) for share in SHARES]
    return max(candidates, key=mean_fidelity)


def _layer_inputs(
    encoder: Encoder, ids: Tensor, bounds: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """In float32, whatever the model runs in: sums over all of the text need it."""
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in encoder.walk(
        ids, bounds, tap=lambda _, q, k, v: seen.append((q.float(), k.float(), v.float()))
    ):
        yield seen.pop()


def _fit_layer(
    q: Tensor, k: Tensor, v: Tensor, shift: Tensor, packed: PackedSequences, plan: CalibrationPlan
) -> _HeadFit:
    target = softmax_attention(q, k, v, cu_seqlens=packed)
    diag = block_diagonal_attention(
        *(q, k, v),
        cu_seqlens=packed,
        block_size=plan.measured_block,
        num_sinks=plan.num_sinks,
    )
    best: _HeadFit | None = None
    for alpha, beta in product(ALPHAS, BETAS):
        lln = lln_attention(q, k, v, alpha=alpha, beta=beta, cu_seqlens=packed, k_map=(None, shift))
        fit = _best_mix(alpha, beta, lln - diag, target - diag)
        best = fit if best is None else best.better_of(fit)
    assert best is not None, "the grid is not empty"
    return best


def _unused_fit(num_heads: int, like: Tensor) -> _HeadFit:
    """For a layer that keeps its sliding window: it is linear already."""
    one = like.new_ones(num_heads)
    return _HeadFit(one, one, torch.zeros_like(one), torch.zeros_like(one))


def _best_mix(alpha: float, beta: float, direction: Tensor, wanted: Tensor) -> _HeadFit:
    """The mix in [0, 1] whose step along `direction` [T, H, D] comes nearest to `wanted`."""
    along = (direction * wanted).sum((0, 2))
    length = direction.square().sum((0, 2))
    mix = (along / length.clamp_min(torch.finfo(length.dtype).tiny)).clamp(0, 1)
    error = (mix[:, None] * direction - wanted).square().sum((0, 2))
    return _HeadFit(torch.full_like(mix, alpha), torch.full_like(mix, beta), mix, error)
