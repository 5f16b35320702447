"""What a map is asked to show, checked against the document before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.errors import InvalidInput
from engine.maps.document import OpenDocument
from engine.types import Attention, MapOptions, ModelInfo, Span

MAX_PIXELS = 2_048
"""Cells a side: more than a screen shows."""

MAX_LINKS = 1_000
MAX_TOPICS = 256
MAX_TOPIC_TOKENS = 200


@dataclass(frozen=True, kw_only=True)
class MapPlan:
    layer: int
    head: int
    rows: Span
    columns: Span
    height: int
    width: int
    links: int
    topics: int
    topic_tokens: int

    @property
    def row_edges(self) -> Tensor:
        return _edges(self.rows, self.height)

    @property
    def column_edges(self) -> Tensor:
        return _edges(self.columns, self.width)


def plan_map(document: OpenDocument, options: MapOptions, config: EngineConfig) -> MapPlan:
    info = document.model.info
    _check_index("layer", options.layer, info.num_layers)
    _check_readable(options.layer, info)
    _check_index("head", options.head, info.num_heads)
    rows = _window("rows", options.rows, document.num_tokens)
    columns = _window("columns", options.columns, document.num_tokens)
    _check_count("height", options.height, 1, MAX_PIXELS)
    _check_count("width", options.width, 1, MAX_PIXELS)
    _check_count("links", options.links, 0, MAX_LINKS)
    _check_count("topics", options.topics, 0, MAX_TOPICS)
    _check_count("topic_tokens", options.topic_tokens, 1, MAX_TOPIC_TOKENS)
    plan = MapPlan(
        layer=options.layer,
        head=options.head,
        rows=rows,
        columns=columns,
        # A cell holds at least one token.
        height=min(options.height, rows.end - rows.start),
        width=min(options.width, columns.end - columns.start),
        links=options.links,
        topics=options.topics,
        topic_tokens=options.topic_tokens,
    )
    _check_price(plan, document, config.max_map_scores)
    return plan


def _check_readable(layer: int, info: ModelInfo) -> None:
    kind = info.attention[layer]
    if kind not in get_args(Attention):
        raise InvalidInput(
            f"layer {layer} of {info.name} has {kind} attention, of which there are no maps",
            code="invalid_layer",
            param="layer",
            limit=", ".join(get_args(Attention)),
            actual=kind,
        )


def _check_price(plan: MapPlan, document: OpenDocument, limit: int) -> None:
    """What cannot be had from sums is computed entry by entry, which has its limit."""
    height, width = plan.rows.end - plan.rows.start, plan.columns.end - plan.columns.start
    if document.model.info.attention[plan.layer] == "softmax":
        _check_scores("rows", height, document.num_tokens, limit, what="softmax attention")
    elif plan.links:
        _check_scores("links", height, width, limit, what="links")


def _check_scores(
    param: Literal["rows", "links"], height: int, width: int, limit: int, *, what: str
) -> None:
    price = height * width
    if price > limit:
        raise InvalidInput(
            f"{what} of {height} rows need {price} scores, the limit is {limit}: "
            f"ask for at most {max(1, limit // width)} rows, or read a model with LLN+Diag",
            code="map_too_large",
            param=param,
            limit=limit,
            actual=price,
        )


def _check_index(param: Literal["layer", "head"], index: int, count: int) -> None:
    if not 0 <= index < count:
        raise InvalidInput(
            f"{param} is {index}; the model has 0 to {count - 1}",
            code=f"invalid_{param}",
            param=param,
            limit=count - 1,
            actual=index,
        )


def _window(param: Literal["rows", "columns"], asked: Span | None, length: int) -> Span:
    if asked is None:
        return Span(0, length)
    if not 0 <= asked.start < asked.end <= length:
        raise InvalidInput(
            f"{param} {asked.start} to {asked.end} are not a window of a document of "
            f"{length} tokens",
            code="invalid_window",
            param=param,
            limit=length,
            actual=f"{asked.start} to {asked.end}",
        )
    return asked


def _check_count(param: str, value: int, smallest: int, largest: int) -> None:
    if not smallest <= value <= largest:
        raise InvalidInput(
            f"{param} must be {smallest} to {largest}, got {value}",
            code=f"invalid_{param}",
            param=param,
            limit=largest if value > largest else smallest,
            actual=value,
        )


def _edges(span: Span, count: int) -> Tensor:
    """So many cells of as equal size as whole tokens allow: [count + 1]."""
    steps = torch.arange(count + 1)
    return span.start + steps * (span.end - span.start) // count
