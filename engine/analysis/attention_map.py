"""A map of one head's attention over a window of an open document: plan it, then compute it.

A map sums the attention matrix P over cells. On request it lists links, the strongest single
entries of P in the window, and topics: LLN's channels, each with the tokens that it spreads over
and the tokens that pick it. Token i picks channel c with probability pi_ic, and channel c attends
to token j with weight kappa_cj, so a head is a mixture of D topics.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from engine.analysis.cache import ByteCache
from engine.analysis.document_states import project_layer
from engine.analysis.head_attention import SCORES_A_STEP, HeadAttention
from engine.analysis.layer_capture import head_view
from engine.analysis.open_document import OpenDocument
from engine.attention_types import AttentionMap, Link, MapOptions, Topic, TopicToken
from engine.config import EngineConfig
from engine.diagnostics.head_view import HeadView
from engine.diagnostics.rows import entropy_of_probabilities
from engine.errors import InvalidInput
from engine.steps import Steps
from engine.types import Attention, ModelInfo, Span

MAX_PIXELS = 2_048
"""The most cells on a side: more than a screen shows."""

MAX_LINKS = 1_000
MAX_TOPICS = 256
MAX_TOPIC_TOKENS = 200


@dataclass(frozen=True, kw_only=True)
class MapPlan:
    """What a map shows, checked against the document."""

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
        # A cell has at least one token.
        height=min(options.height, rows.end - rows.start),
        width=min(options.width, columns.end - columns.start),
        links=options.links,
        topics=options.topics,
        topic_tokens=options.topic_tokens,
    )
    _check_num_scores(plan, document, config.max_map_scores)
    return plan


def _check_readable(layer: int, info: ModelInfo) -> None:
    kind = info.attention[layer]
    if kind not in get_args(Attention):
        raise InvalidInput(
            f"layer {layer} of {info.name} has {kind} attention, which cannot be mapped",
            code="invalid_layer",
            param="layer",
            limit=", ".join(get_args(Attention)),
            actual=kind,
        )


def _check_num_scores(plan: MapPlan, document: OpenDocument, limit: int) -> None:
    """Limit what is computed score by score: softmax attention, and links."""
    height, width = plan.rows.end - plan.rows.start, plan.columns.end - plan.columns.start
    if document.model.info.attention[plan.layer] == "softmax":
        _check_scores("softmax attention", "rows", height, document.num_tokens, limit)
    elif plan.links:
        _check_scores("links", "links", height, width, limit)


def _check_scores(
    what: str, param: Literal["rows", "links"], height: int, width: int, limit: int
) -> None:
    scores = height * width
    if scores > limit:
        instead = "for fewer columns" if param == "links" else "use a model with LLN+Diag"
        raise InvalidInput(
            f"{what} of {height} rows need {scores} scores, the limit is {limit}: "
            f"ask for at most {max(1, limit // width)} rows, or {instead}",
            code="map_too_large",
            param=param,
            limit=limit,
            actual=scores,
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
    """The edges of this many cells, of sizes as equal as whole tokens allow: [count + 1]."""
    steps = torch.arange(count + 1)
    return span.start + steps * (span.end - span.start) // count


@torch.no_grad()
def map_steps(document: OpenDocument, plan: MapPlan, cache: ByteCache) -> Steps[AttentionMap]:
    attention = yield from open_head(document, plan.layer, plan.head, cache)
    device = attention.view.q.device
    sums = yield from attention.sums(plan.row_edges.to(device), plan.column_edges.to(device))
    links: tuple[Link, ...] = ()
    if plan.links:
        links = yield from find_links(attention, plan)
    topics: tuple[Topic, ...] | None = None
    if plan.topics and attention.prefixes is not None:
        topics = topics_of(attention, document, count=plan.topics, tokens=plan.topic_tokens)
    return _attention_map(document, plan, attention, sums, links, topics)


def open_head(
    document: OpenDocument, layer: int, head: int, cache: ByteCache
) -> Steps[HeadAttention]:
    key = ("head attention", document.handle, layer, head)
    attention: HeadAttention | None = cache.get(key)
    if attention is None:
        projected = yield from project_layer(document, layer, cache)
        attention = cache.get(key)  # a question that waited for the same layer may have opened it
    if attention is None:
        view = head_view(document.model, projected)
        attention = HeadAttention.of(_single_head(view, head))
        cache.put(key, attention, attention.num_bytes)
        yield
    return attention


def _single_head(view: HeadView, head: int) -> HeadView:
    """Copies of one head's queries and keys, to free the memory of everything else."""
    one = replace(view, v=None, x=None, out=None).only([head])
    return replace(one, q=one.q.clone(), k=one.k.clone())


def _attention_map(
    document: OpenDocument,
    plan: MapPlan,
    attention: HeadAttention,
    sums: Tensor,
    links: tuple[Link, ...],
    topics: tuple[Topic, ...] | None,
) -> AttentionMap:
    heights = plan.row_edges.diff().to(sums).unsqueeze(1)
    return AttentionMap(
        model=document.model.name,
        document=document.handle,
        tokens=document.num_tokens,
        layer=plan.layer,
        head=plan.head,
        attention=attention.view.attention,
        rows=plan.rows,
        columns=plan.columns,
        row_edges=tuple(plan.row_edges.tolist()),
        column_edges=tuple(plan.column_edges.tolist()),
        mass=(sums / heights).cpu().numpy(),
        links=links,
        topics=topics,
    )


class StrongestLinks:
    """The strongest entries of the tiles added so far."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._values = torch.zeros(0, dtype=torch.float64)
        self._places = torch.zeros(0, 2, dtype=torch.long)

    def add(self, entries: Tensor, first_row: int, first_column: int) -> None:
        top = entries.flatten().topk(min(self._count, entries.numel()))
        indices = top.indices.cpu()
        rows = indices // entries.shape[1] + first_row
        places = torch.stack([rows, indices % entries.shape[1] + first_column], dim=1)
        values = torch.cat([self._values, top.values.cpu()])
        best = values.topk(min(self._count, len(values))).indices
        self._values = values[best]
        self._places = torch.cat([self._places, places])[best]

    def found(self) -> tuple[Link, ...]:
        return tuple(
            Link(query=query, key=key, weight=weight)
            for (query, key), weight in zip(
                self._places.tolist(), self._values.tolist(), strict=True
            )
        )


def find_links(attention: HeadAttention, plan: MapPlan) -> Steps[tuple[Link, ...]]:
    """The strongest links of the window, in descending order."""
    links = StrongestLinks(plan.links)
    columns = slice(plan.columns.start, plan.columns.end)
    is_softmax = attention.view.attention == "softmax"
    width = attention.view.num_tokens if is_softmax else columns.stop - columns.start
    step = max(1, SCORES_A_STEP // width)
    for start in range(plan.rows.start, plan.rows.end, step):
        end = min(start + step, plan.rows.end)
        links.add(attention.entries(start, end, columns), start, columns.start)
        yield
    return links.found()


def topics_of(
    attention: HeadAttention, document: OpenDocument, *, count: int, tokens: int
) -> tuple[Topic, ...]:
    """The channels with the largest shares of the head's attention, the largest first."""
    assert attention.prefixes is not None, "only LLN has channels"
    length = attention.view.num_tokens
    shares = attention.prefixes.pi[-1] / length  # [D] of all the head's attention
    picks = attention.prefixes.rows(0, length).t()  # [D, N]
    spreads = attention.prefixes.keys(0, length).t()  # [D, N]
    largest = shares.topk(min(count, len(shares))).indices.tolist()
    return tuple(
        Topic(
            channel=channel,
            share=float(shares[channel]),
            effective_tokens=float(entropy_of_probabilities(spreads[channel]).exp()),
            tokens=_strongest(spreads[channel], document, tokens),
            users=_strongest(picks[channel], document, tokens),
        )
        for channel in largest
    )


def _strongest(weights: Tensor, document: OpenDocument, count: int) -> tuple[TopicToken, ...]:
    top = torch.topk(weights, min(count, len(weights)))
    indices = top.indices.tolist()
    written = document.written(indices)
    return tuple(
        TopicToken(index=index, token=token, characters=document.characters_of(index), weight=value)
        for index, token, value in zip(indices, written, top.values.tolist(), strict=True)
    )
