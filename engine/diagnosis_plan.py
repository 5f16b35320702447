"""What a diagnosis will read, and whether that can be paid for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.config import EngineConfig
from engine.diagnostics import (
    AnyInstrument,
    Effort,
    Instrument,
    LayerInstrument,
    find_instruments,
)
from engine.errors import InvalidInput, shown
from engine.model.embedding_model import EmbeddingModel
from engine.types import LeftOut, Mode

MODES: tuple[Mode, ...] = ("auto", "exact", "sampled")
_EXACT = Effort(mode="exact", tolerance=1e-8)


@dataclass(frozen=True, kw_only=True)
class DiagnosisPlan:
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    instruments: tuple[AnyInstrument, ...]
    effort: Effort
    are_named: bool = False
    """Whether the instruments were asked for by name."""

    left_out: tuple[LeftOut, ...] = ()

    @property
    def of_heads(self) -> tuple[Instrument, ...]:
        return tuple(one for one in self.instruments if isinstance(one, Instrument))

    @property
    def of_layers(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.instruments if isinstance(one, LayerInstrument))


def plan_diagnosis(
    model: EmbeddingModel,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    instruments: Sequence[str] | None,
    mode: str,
) -> DiagnosisPlan:
    """Everything that was not asked for in particular, and nothing that does not exist."""
    if instruments is not None and not instruments:
        raise InvalidInput("instruments is empty", code="invalid_instruments", param="instruments")
    for known in MODES:
        if mode == known:
            return DiagnosisPlan(
                layers=_readable_layers(layers, model),
                heads=_chosen("heads", heads, model.info.num_heads),
                instruments=tuple(find_instruments(instruments)),
                effort=_EXACT if known == "exact" else Effort(mode=known),
                are_named=instruments is not None,
            )
    raise InvalidInput(
        f"mode must be one of {', '.join(MODES)}, got {shown(mode)!r}",
        code="invalid_mode",
        param="mode",
        limit=", ".join(MODES),
        actual=mode,
    )


def fit_plan(
    plan: DiagnosisPlan,
    model: EmbeddingModel,
    num_tokens: int,
    config: EngineConfig,
) -> DiagnosisPlan:
    """The plan for a text of this length: without what is too dear unless it was asked for by name,
    and refused if exactness beyond the budget was."""
    kinds = [model.info.attention[layer] for layer in plan.layers]
    if not plan.are_named:
        plan = _without_dear(plan, kinds, num_tokens)
    if plan.effort.mode == "exact":
        _check_affordable(plan, kinds, num_tokens, config)
    return plan


def _without_dear(plan: DiagnosisPlan, kinds: Sequence[str], num_tokens: int) -> DiagnosisPlan:
    kept, left_out = [], []
    for one in plan.instruments:
        limit = _max_tokens(one, kinds)
        if limit is None or num_tokens <= limit:
            kept.append(one)
            continue
        reason = f"beyond {limit} tokens it is read only when named"
        left_out.append(LeftOut(instrument=one.name, reason=reason))
    return replace(plan, instruments=tuple(kept), left_out=tuple(left_out))


def _max_tokens(instrument: AnyInstrument, kinds: Sequence[str]) -> int | None:
    if isinstance(instrument, LayerInstrument):
        return instrument.max_tokens
    return instrument.max_softmax_tokens if "softmax" in kinds else None


def _check_affordable(
    plan: DiagnosisPlan, kinds: Sequence[str], num_tokens: int, config: EngineConfig
) -> None:
    """Exact rows cost all pairs of tokens, for every head whose attention is not confined."""
    quadratic = sum(kind != "block_diagonal" for kind in kinds)
    pairs = quadratic * len(plan.heads) * num_tokens**2 if plan.of_heads else 0
    limit = config.max_exact_pairs
    if pairs > limit:
        raise InvalidInput(
            f"exact rows of {quadratic} layers, {len(plan.heads)} heads and {num_tokens} tokens "
            f"cost {pairs} pairs, the limit is {limit}; ask for fewer heads, or for mode "
            f'"sampled", which reads {plan.effort.sampled_rows} rows a head and states its error',
            code="exact_too_expensive",
            param="mode",
            limit=limit,
            actual=pairs,
        )


def _readable_layers(asked: Sequence[int] | None, model: EmbeddingModel) -> tuple[int, ...]:
    """All layers but those of a sliding window, which the instruments cannot read."""
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
    layers = _chosen("layers", asked, model.info.num_layers)
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


def _chosen(param: str, asked: Sequence[int] | None, count: int) -> tuple[int, ...]:
    if asked is None:
        return tuple(range(count))
    if not asked:
        raise InvalidInput(f"{param} is empty", code=f"invalid_{param}", param=param)
    for index in asked:
        if not 0 <= index < count:
            raise InvalidInput(
                f"{param} holds {index}; the model has 0 to {count - 1}",
                code=f"invalid_{param}",
                param=param,
                limit=count - 1,
                actual=index,
            )
    return tuple(sorted(set(asked)))
