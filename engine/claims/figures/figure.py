"""A figure as plain data: panels of curves, measured or predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Source: TypeAlias = Literal["measured", "paper", "corrected"]
"""Measured on matrices, predicted by the paper, or predicted by its corrected claim."""

Method: TypeAlias = Literal[
    "softmax",
    "lln",
    "lln_paper",
    "lln_refitted",
    "lln_entropy",
    "elu",
    "relu",
    "quadratic",
    "d32",
    "d64",
    "d128",
]
"""What a curve shows. A method has the same colour in every figure."""


@dataclass(frozen=True, kw_only=True)
class Series:
    label: str
    method: Method
    x: Sequence[float]
    y: Sequence[float]
    source: Source = "measured"


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False


@dataclass(frozen=True, kw_only=True)
class Figure:
    name: str  # of its files
    title: str
    panels: tuple[Panel, ...]
    settings: Mapping[str, float | int | str]  # of the random matrices


@dataclass(frozen=True, kw_only=True)
class RandomHeads:
    """The size of the random heads that a figure measures, and how many it averages over."""

    tokens: int
    head_size: int
    draws: int = 1
