"""What a diagnosis will read: the request, checked against the model and the length of its text.

Functions stand in the order in which a diagnosis runs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from engine.attention_types import SAMPLED_ROWS, SkippedInstrument
from engine.checkpoint.block_size import block_of
from engine.config import EngineConfig
from engine.diagnostics import (
    LAYER_INSTRUMENTS,
    AnyInstrument,
    Instrument,
    LayerInstrument,
    find_instruments,
)
from engine.diagnostics.effective_rank import EFFECTIVE_RANK
from engine.diagnostics.head_readings import MAX_PARALLEL_GROUPS, kept_matrix_bytes
from engine.diagnostics.lln_diag import MAX_BUFFER_BYTES, DiagWeightBuffer
from engine.diagnostics.readings import Effort
from engine.diagnostics.spectral_gap import SPECTRAL_GAP
from engine.errors import InvalidInput, find_named
from engine.model.attention import CALIBRATED
from engine.model.embedding_model import EmbeddingModel

_EIGENVALUE_COPIES = 3
"""Matrices in memory while LAPACK computes the eigenvalues of one: it, its copy, and rows read."""

EFFORTS: Mapping[str, Effort] = {
    "auto": Effort(mode="auto"),
    "exact": Effort(mode="exact", tolerance=1e-8),
    "sampled": Effort(mode="sampled"),
}
"""By mode."""

FEWEST_ROWS, MOST_ROWS = 2, 65_536
"""The rows that a sample may have."""

MAX_SEED = 2**53 - 1
"""Every number up to it is exact in JSON."""

MAX_QUANTILES = 16


@dataclass(frozen=True, kw_only=True)
class DiagnosisPlan:
    """What a diagnosis will read."""

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    instruments: tuple[AnyInstrument, ...]
    effort: Effort
    are_named: bool = False
    """Whether the request named the instruments."""

    skipped: tuple[SkippedInstrument, ...] = ()
    """Instruments that are too expensive at this length."""

    @property
    def of_heads(self) -> tuple[Instrument, ...]:
        return tuple(one for one in self.instruments if isinstance(one, Instrument))

    @property
    def of_layers(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.instruments if isinstance(one, LayerInstrument))

    @property
    def seen_layers(self) -> tuple[int, ...]:
        """The layers that some instrument sees: those asked for, or all up to the last of them."""
        if any(LAYER_INSTRUMENTS[name].needs_all_layers for name in self.of_layers):
            return tuple(range(max(self.layers) + 1))
        return self.layers


def plan_diagnosis(
    model: EmbeddingModel,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    instruments: Sequence[str] | None,
    mode: str = "auto",
    *,
    sampled_rows: int = SAMPLED_ROWS,
    seed: int = 0,
    quantiles: Sequence[float] = (),
) -> DiagnosisPlan:
    """Check the request against the model; None stands for all."""
    if instruments is not None and not instruments:
        raise InvalidInput("instruments is empty", code="invalid_instruments", param="instruments")
    effort = find_named("mode", mode, EFFORTS, param="mode", code="invalid_mode")
    _check_range("sampled_rows", sampled_rows, FEWEST_ROWS, MOST_ROWS)
    _check_range("seed", seed, 0, MAX_SEED)
    effort = replace(
        effort, sampled_rows=sampled_rows, seed=seed, quantiles=_checked_quantiles(quantiles)
    )
    return DiagnosisPlan(
        layers=_readable_layers(layers, model),
        heads=_check_indices("heads", heads, model.info.num_heads),
        instruments=tuple(find_instruments(instruments)),
        effort=effort,
        are_named=instruments is not None,
    )


def _check_range(param: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise InvalidInput(
            f"{param} must be from {lowest} to {highest}, got {value}",
            code=f"invalid_{param}",
            param=param,
            limit=lowest if value < lowest else highest,
            actual=value,
        )


def _checked_quantiles(asked: Sequence[float]) -> tuple[float, ...]:
    """The quantiles in ascending order, each once."""
    if len(asked) > MAX_QUANTILES:
        raise InvalidInput(
            f"quantiles must be at most {MAX_QUANTILES} numbers, got {len(asked)}",
            code="invalid_quantiles",
            param="quantiles",
            limit=MAX_QUANTILES,
            actual=len(asked),
        )
    for share in asked:
        if not 0 <= share <= 1:  # NaN is refused too
            raise InvalidInput(
                f"quantiles must be from 0 to 1, got {share}",
                code="invalid_quantiles",
                param="quantiles",
                limit=0 if share < 0 else 1,
                actual=str(share),
            )
    return tuple(sorted({float(share) for share in asked}))


def _readable_layers(asked: Sequence[int] | None, model: EmbeddingModel) -> tuple[int, ...]:
    """The layers asked for. Instruments cannot read layers with a sliding window."""
    windowed = {
        layer for layer, kind in enumerate(model.info.attention) if kind == "sliding_window"
    }
    if asked is None:
        readable = tuple(layer for layer in range(model.info.num_layers) if layer not in windowed)
        if not readable:
            raise InvalidInput(
                f"all {model.info.num_layers} layers of {model.name} attend within a sliding "
                "window, which no instrument reads",
                code="invalid_layers",
                param="layers",
                actual=model.name,
            )
        return readable
    layers = _check_indices("layers", asked, model.info.num_layers)
    for layer in layers:
        if layer in windowed:
            raise InvalidInput(
                f"layer {layer} of {model.name} attends within a sliding window, "
                "which no instrument reads",
                code="invalid_layers",
                param="layers",
                actual=layer,
            )
    return layers


def _check_indices(param: str, asked: Sequence[int] | None, count: int) -> tuple[int, ...]:
    """The indices in ascending order, each once; all of them for None."""
    if asked is None:
        return tuple(range(count))
    if not asked:
        raise InvalidInput(f"{param} is empty", code=f"invalid_{param}", param=param)
    for index in asked:
        if not 0 <= index < count:
            raise InvalidInput(
                f"{param} contains {index}; the model has 0 to {count - 1}",
                code=f"invalid_{param}",
                param=param,
                limit=count - 1,
                actual=index,
            )
    return tuple(sorted(set(asked)))


def fit_plan(
    plan: DiagnosisPlan,
    model: EmbeddingModel,
    num_tokens: int,
    config: EngineConfig,
) -> DiagnosisPlan:
    """The plan for a text of this length. Instruments that are too expensive for it are left out
    unless the request named them; exact readings beyond the limit are an error."""
    kinds = [model.info.attention[layer] for layer in plan.layers]
    if not plan.are_named:
        plan = _without_expensive(plan, kinds, num_tokens)
    if plan.of_heads:
        _check_pairs(plan, kinds, num_tokens, config.max_exact_pairs)
    return plan


def _without_expensive(plan: DiagnosisPlan, kinds: Sequence[str], num_tokens: int) -> DiagnosisPlan:
    affordable, skipped = [], []
    for one in plan.instruments:
        if isinstance(one, LayerInstrument):
            limit = one.max_tokens
        else:
            limit = one.max_softmax_tokens if "softmax" in kinds else None
        if limit is None or num_tokens <= limit:
            affordable.append(one)
            continue
        reason = f"beyond {limit} tokens it is read only when named"
        skipped.append(SkippedInstrument(instrument=one.name, reason=reason))
    return replace(plan, instruments=tuple(affordable), skipped=tuple(skipped))


def _check_pairs(plan: DiagnosisPlan, kinds: Sequence[str], num_tokens: int, limit: int) -> None:
    """A row costs a pair with every token, for every head whose attention is not block-diagonal."""
    effort = plan.effort
    rows = effort.num_rows(num_tokens)
    quadratic = sum(kind != "block_diagonal" for kind in kinds)
    pairs = quadratic * len(plan.heads) * rows * num_tokens
    is_usual = effort.mode != "exact" and rows <= max(SAMPLED_ROWS, effort.max_exact_tokens)
    if pairs <= limit or is_usual:
        return
    cost = (
        f"{quadratic} layers, {len(plan.heads)} heads and {num_tokens} tokens cost {pairs} pairs, "
        f"the limit is {limit}; ask for fewer heads"
    )
    if effort.mode == "exact":
        raise InvalidInput(
            f'exact rows of {cost}, or for mode "sampled", which reads {effort.sampled_rows} rows '
            "a head and states its error",
            code="exact_too_expensive",
            param="mode",
            limit=limit,
            actual=pairs,
        )
    raise InvalidInput(
        f"{rows} rows of {cost}, or for fewer rows",
        code="rows_too_expensive",
        param="sampled_rows",
        limit=limit,
        actual=pairs,
    )


def instrument_bytes(model: EmbeddingModel, num_tokens: int, effort: Effort) -> int:
    """Upper bound of what a layer's heads keep in memory from one instrument to the next."""
    calibration, info = model.calibration, model.info
    if calibration is None or not any(kind in CALIBRATED for kind in info.attention):
        return 0
    num_bytes = DiagWeightBuffer.bytes_for(
        num_heads=info.num_heads,
        num_tokens=num_tokens,
        channels=info.dim // info.num_heads,
        block_size=block_of(num_tokens, calibration.block_size, calibration.long_block),
        num_sinks=sum(calibration.num_sinks),
        dtype=effort.dtype_of(num_tokens),
    )
    return min(MAX_BUFFER_BYTES, num_bytes)


def matrix_bytes(plan: DiagnosisPlan, num_tokens: int) -> int:
    """Upper bound of what dense matrices of heads take: those that instruments share, and those
    whose singular values or eigenvalues are computed, one instrument after the other."""
    shared = kept_matrix_bytes(len(plan.heads), num_tokens, plan.effort) if plan.of_heads else 0
    copies = 0
    if EFFECTIVE_RANK in plan.instruments and plan.effort.has_all_singular_values(num_tokens):
        copies = 1
    if SPECTRAL_GAP in plan.instruments and plan.effort.has_all_eigenvalues(num_tokens):
        copies = _EIGENVALUE_COPIES
    return shared + copies * MAX_PARALLEL_GROUPS * num_tokens**2 * torch.float64.itemsize
