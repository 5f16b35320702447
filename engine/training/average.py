"""The mean of models that were trained from one checkpoint: one model, at the cost of one.

Models that began from the same numbers, and differ in their seeds or their data, often have a mean
that finds as much as the best of them or more ("model soups", Wortsman et al., 2022). It is a new
model and has to be judged like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import reduce
from math import isfinite
from pathlib import Path
from typing import Any

from torch import Tensor

from engine.checkpoint.calibration import FILE_NAME, Calibration, write_calibration
from engine.config import EngineConfig
from engine.errors import InvalidInput
from engine.model.embedding_model import EmbeddingModel
from engine.training.convert import copy_model, load_adapted
from engine.training.model_folder import (
    TrainingRecord,
    publish,
    read_record,
    workplace,
    write_record,
)

_WORKPLACE = ".unfinished"
_FEWEST = 2


def average_models(
    models: Sequence[str],
    out: Path,
    shares: Sequence[float] | None = None,
    *,
    config: EngineConfig = EngineConfig(),  # noqa: B008 - frozen
) -> Path:
    """Write the mean of adapted models, given by names or folders. Shares need not add up to 1."""
    if len(models) < _FEWEST:
        raise InvalidInput(
            f"an average needs at least {_FEWEST} models, got {len(models)}",
            param="models",
            limit=_FEWEST,
            actual=len(models),
        )
    weights = _checked_shares(shares, models)
    with workplace(out, _WORKPLACE) as place:
        loaded = [load_adapted(model, replace(config, dtype="float32")) for model in models]
        calibrations = [calibration for _, calibration in loaded]
        for name, calibration in zip(models[1:], calibrations[1:], strict=True):
            _check_alike(models[0], calibrations[0], name, calibration)
        built = place / "model"
        copy_model(loaded[0][0].checkpoint.folder, built)
        write_calibration(built / FILE_NAME, mean_calibration(calibrations, weights))
        write_record(built, _record([model for model, _ in loaded], weights))
        publish(built, out)
    return out


def mean_calibration(calibrations: Sequence[Calibration], weights: Sequence[float]) -> Calibration:
    """The weighted mean of every number; settings are those of the first."""
    first = calibrations[0]
    numbers: dict[str, Any] = {
        field.name: _mean([getattr(one, field.name) for one in calibrations], weights)
        for field in fields(Calibration)
        if isinstance(getattr(first, field.name), Tensor)
    }
    adapted = {
        name: _mean([one.adapted[name] for one in calibrations], weights) for name in first.adapted
    }
    return replace(first, **numbers, adapted=adapted)


def _mean(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    parts = [tensor.double() * weight for tensor, weight in zip(tensors, weights, strict=True)]
    return reduce(Tensor.add, parts).to(tensors[0].dtype)


def _checked_shares(shares: Sequence[float] | None, models: Sequence[str]) -> list[float]:
    """Each model's part of the whole."""
    given = [1.0] * len(models) if shares is None else list(shares)
    if len(given) != len(models):
        raise InvalidInput(
            f"got {len(given)} shares for {len(models)} models",
            param="shares",
            limit=len(models),
            actual=len(given),
        )
    for share in given:
        if not (isfinite(share) and share > 0):
            raise InvalidInput(
                f"a share must be above 0, got {share:g}", param="shares", limit=0, actual=share
            )
    return [share / sum(given) for share in given]


def _check_alike(name: str, one: Calibration, other_name: str, other: Calibration) -> None:
    """Only numbers that mean the same can be averaged."""
    own, others = _described(one), _described(other)
    for what in sorted(own.keys() | others.keys()):
        if own.get(what) != others.get(what):
            raise InvalidInput(
                f"{name} and {other_name} cannot be averaged: {what} is {own.get(what)} in one "
                f"and {others.get(what)} in the other",
                code="models_differ",
                param="models",
                limit=str(own.get(what)),
                actual=str(others.get(what)),
            )


def _described(calibration: Calibration) -> Mapping[str, Any]:
    """The settings, and the shape of each tensor."""
    values = {field.name: getattr(calibration, field.name) for field in fields(calibration)}
    values |= values.pop("adapted")
    return {
        name: tuple(value.shape) if isinstance(value, Tensor) else value
        for name, value in values.items()
    }


def _record(models: Sequence[EmbeddingModel], weights: Sequence[float]) -> TrainingRecord:
    """What each of them was trained on; nothing is known of the mean beyond that."""
    return {
        "sources": {},
        "averaged": [
            {"share": weight, "record": read_record(model)}
            for model, weight in zip(models, weights, strict=True)
        ],
    }
