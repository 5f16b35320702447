"""Calibration without training: the numbers with which LLN+Diag is nearest to its teacher.

The teacher reads real text. In every layer, each head gets the alpha, beta and mix that bring
mix * LLN + (1 - mix) * Diag nearest to the softmax output, on the teacher's own queries, keys and
values. The best mix has a closed form; alpha and beta are searched on a grid. At the end one factor
for all mixes is chosen by the cosine to the teacher's vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from engine.checkpoint.block_size import LongBlock
from engine.checkpoint.calibration import Calibration
from engine.errors import InvalidInput
from engine.model.embedding_model import EmbeddingModel
from engine.model.encoder import Encoder
from engine.model.pooling import pool, whole_texts
from engine.training.encode import pooling_of
from engine.training.token_corpus import TokenRange
from engine.types import Context, Ids, PositionScheme
from kernels.attention import (
    PackedSequences,
    block_diagonal_attention,
    lln_attention,
    softmax_attention,
)

ALPHAS = (0.5, 1.0, 1.5, 2.0, 3.0)
BETAS = (0.5, 1.0, 1.5, 2.0)
SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1)
"""Factors on every head's mix to choose from: the mix that is best for a layer alone is too large
when all layers have theirs."""


@dataclass(frozen=True, kw_only=True)
class CalibrationPlan:
    """The form of the calibrated model, and how much text to measure on."""

    block_size: int = 256
    """Tokens of a block. If a sampled window is no longer than this, it has nothing beyond a block
    to measure; blocks of half a window are measured instead."""

    long_block: LongBlock | None = None
    """Blocks of long texts. They are not measured."""

    pooling_slope: float = 0.0
    """How much more the last token of a long text counts in its vector than the average token."""

    chunk_context: Context | None = None
    """The context of chunks for which a caller says none. None is what training teaches, or else
    balanced."""

    num_sinks: tuple[int, int] = (1, 1)
    sample_tokens: int = 512
    num_samples: int = 32
    positions: PositionScheme = "tile"

    @property
    def measured_block(self) -> int:
        return self.block_size if self.block_size < self.sample_tokens else self.sample_tokens // 2

    @property
    def compared_tokens(self) -> int:
        """Tokens of each text that the result is compared on: more than a block, so that LLN has a
        share."""
        return self.sample_tokens if self.block_size < self.sample_tokens else 2 * self.block_size

    def checked(self, teacher: EmbeddingModel) -> CalibrationPlan:
        """The plan itself; an error if it cannot calibrate this model."""
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
        check_pools_by_mean(teacher, self.pooling_slope)
        return self


def check_pools_by_mean(model: EmbeddingModel, pooling_slope: float) -> None:
    pooling = model.checkpoint.pooling
    if pooling_slope and pooling != "mean":
        raise InvalidInput(
            f"a rise needs a model that pools by the mean; {model.name} pools by {pooling}",
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
    """Calibrate against a softmax model on real text."""
    if not set(teacher.info.attention) <= {"softmax", "sliding_window"}:
        raise InvalidInput(
            f"the teacher must have softmax attention; {teacher.name} has {teacher.info.attention}",
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
    return replace(
        best,
        block_size=plan.block_size,
        long_block=plan.long_block,
        pooling_slope=plan.pooling_slope,
        chunk_context=plan.chunk_context or "balanced",
    )


@torch.no_grad()
def packed_vectors(model: EmbeddingModel, ids: Tensor, bounds: Sequence[int]) -> Tensor:
    """The model's vector of each packed window: [windows, W]."""
    spans = whole_texts(bounds, model.pooling_slope_of)
    return pool(model.encoder(ids, bounds), spans, pooling_of(model))


def sample_windows(
    teacher: EmbeddingModel, texts: Sequence[str], plan: CalibrationPlan
) -> tuple[Tensor, list[int]]:
    """Windows spread evenly over the text, each between special tokens of its own."""
    content = _content_ids(teacher, texts)
    windows = _cut(teacher, content, _sampled(teacher, content, plan))
    ids = torch.from_numpy(np.concatenate(windows).astype(np.int64))
    return ids.to(teacher.encoder.device), list(range(0, len(ids) + 1, plan.sample_tokens))


def other_windows(
    teacher: EmbeddingModel, texts: Sequence[str], plan: CalibrationPlan
) -> list[Ids]:
    """Windows of the text that `sample_windows` leaves out: as many tokens, and long enough for LLN
    to have a share."""
    content = _content_ids(teacher, texts)
    used = np.concatenate([np.arange(*span) for span in _sampled(teacher, content, plan)])
    rest: Ids = np.delete(content, used)
    special = teacher.tokenizer.num_special
    tokens = min(plan.compared_tokens, len(rest) + special)
    if tokens <= plan.block_size:
        raise InvalidInput(
            f"comparing needs a text longer than a block of {plan.block_size} tokens; calibration "
            f"leaves {tokens} tokens",
            code="too_little_text",
            param="block_size",
            limit=tokens,
            actual=plan.block_size,
        )
    size = tokens - special
    count = min(plan.num_samples * plan.sample_tokens // tokens, len(rest) // size)
    return _cut(teacher, rest, _spread(len(rest), size, max(count, 1)))


def _sampled(teacher: EmbeddingModel, content: Ids, plan: CalibrationPlan) -> list[TokenRange]:
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


def _spread(length: int, size: int, count: int) -> list[TokenRange]:
    """`count` stretches of one size, spread evenly."""
    starts = [index * (length // count) for index in range(count)]
    return [(start, start + size) for start in starts]


def _cut(teacher: EmbeddingModel, content: Ids, spans: Sequence[TokenRange]) -> list[Ids]:
    return [teacher.tokenizer.between_special(content[slice(*span)]) for span in spans]


def _content_ids(teacher: EmbeddingModel, texts: Sequence[str]) -> Ids:
    encoded = teacher.tokenizer.encode_batch(texts)
    return np.concatenate([np.zeros(0, np.int32), *(item.content for item in encoded)])


def _with_best_share(
    fitted: Calibration, teacher: EmbeddingModel, ids: Tensor, bounds: Sequence[int]
) -> Calibration:
    wanted = packed_vectors(teacher, ids, bounds)

    def mean_fidelity(candidate: Calibration) -> float:
        student = teacher.with_calibration(candidate)
        found = packed_vectors(student, ids, bounds)
        return float(cosine_similarity(wanted, found, dim=-1).mean())

    candidates = [replace(fitted, mix=fitted.mix * share) for share in SHARES]
    return max(candidates, key=mean_fidelity)


def _layer_inputs(
    encoder: Encoder, ids: Tensor, bounds: Sequence[int]
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Queries, keys and values of each layer, in float32: sums over the whole text need it."""
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
    """The numbers of a layer that keeps its sliding window, which is linear already."""
    one = like.new_ones(num_heads)
    return _HeadFit(one, one, torch.zeros_like(one), torch.zeros_like(one))


def _best_mix(alpha: float, beta: float, direction: Tensor, wanted: Tensor) -> _HeadFit:
    """The mix in [0, 1] for which mix * `direction` [T, H, D] is nearest to `wanted`."""
    along = (direction * wanted).sum((0, 2))
    length = direction.square().sum((0, 2))
    mix = (along / length.clamp_min(torch.finfo(length.dtype).tiny)).clamp(0, 1)
    error = (mix[:, None] * direction - wanted).square().sum((0, 2))
    return _HeadFit(torch.full_like(mix, alpha), torch.full_like(mix, beta), mix, error)
