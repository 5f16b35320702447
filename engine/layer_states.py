"""The layers of an encoder reading one text, each with all that an instrument may look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from engine.diagnostics import HeadView, LayerView
from engine.diagnostics.work import Work
from engine.model.attention import (
    LLNDiagAttention,
    SlidingWindowAttention,
    SoftmaxAttention,
)
from engine.model.embedding_model import EmbeddingModel
from engine.model.encoder import Encoder
from engine.model.linear import dense_weight
from engine.model.tiles import Projections, TiledPass, can_tile, kept_bytes
from engine.prepare import Prepared
from engine.runner import pack
from kernels.attention import PackedSequences


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerStep:
    """One layer that the encoder has computed."""

    index: int
    before: Tensor  # [T, W]
    after: Tensor  # [T, W]
    q: Tensor  # [T, H, D]
    k: Tensor  # [T, H, D]
    v: Tensor  # [T, H, D]


def layer_steps(model: EmbeddingModel, text: Prepared) -> Iterator[LayerStep | None]:
    """The layers in their order, and None wherever others may have a turn."""
    encoder = model.encoder
    limit = model.config.sweep_tokens_on(encoder.device.type)
    tiled = can_tile(encoder) and text.num_embedded >= limit
    return (
        _tile_by_tile(encoder, text) if tiled else at_once(encoder, *pack([text], encoder.device))
    )


def _tile_by_tile(encoder: Encoder, text: Prepared) -> Iterator[LayerStep | None]:
    tiles = TiledPass(encoder, text.ids, keep_projections=True)
    before: Tensor | None = None
    seen: Projections | None = None
    while not tiles.is_done:
        visit = tiles.visit()
        if visit.rows.end < text.num_embedded:
            yield None
            continue
        if before is not None and seen is not None:
            yield LayerStep(index=visit.layer, before=before, after=tiles.states, **seen._asdict())
        if not tiles.is_done:
            assert tiles.projections is not None, "kept"
            before, seen = tiles.states.clone(), tiles.projections.copied()


def diagnosis_bytes(encoder: Encoder, num_tokens: int) -> int:
    """What a walk through the layers of such a text holds: a pass that keeps its projections, and
    a copy of both for whoever looks at a layer."""
    return 2 * kept_bytes(encoder, num_tokens, keep_projections=True)


def projection_bytes(encoder: Encoder, num_tokens: int) -> int:
    """Of the queries, keys and values of one layer."""
    return 3 * kept_bytes(encoder, num_tokens, keep_projections=False)


def at_once(encoder: Encoder, ids: Tensor, bounds: Sequence[int]) -> Iterator[LayerStep]:
    """Every layer in one go, of ids [T] which are one sequence."""
    before = encoder.first_states(ids, bounds)
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    states = encoder.walk(ids, bounds, tap=lambda _, q, k, v: seen.append((q, k, v)))
    for index, after in enumerate(states):
        q, k, v = seen.pop()
        yield LayerStep(index=index, before=before, after=after, q=q, k=k, v=v)
        before = after


def head_view(model: EmbeddingModel, step: LayerStep) -> HeadView:
    """The layer's heads as the instruments see them: what the encoder really computed."""
    attention = model.encoder.attention[step.index]
    assert not isinstance(attention, SlidingWindowAttention), "no plan holds such a layer"
    softmax = HeadView(
        q=step.q,
        k=step.k,
        v=step.v,
        x=step.before,
        out=_out(model, step.index),
        attention="softmax",
    )
    if isinstance(attention, SoftmaxAttention):
        return softmax
    lln = attention.parameters
    kind, mix, block_size = attention.kind, lln.mix, lln.block_of(len(step.q))
    if isinstance(attention, LLNDiagAttention):
        mix = attention.shares(step.q, len(step.q))
        if len(step.q) <= block_size:
            kind = "block_diagonal"  # one block, where LLN takes no share
    return replace(
        softmax,
        attention=kind,
        alpha=lln.alpha,
        beta=lln.beta,
        mix=mix,
        block_size=block_size,
        num_sinks=lln.num_sinks,
        q_map=lln.q_map,
        k_map=lln.k_map,
    )


def layer_view(model: EmbeddingModel, step: LayerStep) -> LayerView:
    weights = model.encoder.weights
    layer = weights.layers[step.index]
    attend = model.encoder.attention[step.index]
    packed = PackedSequences.of([0, len(step.q)], step.q.device)

    def mix_tokens(states: Tensor) -> Work[Tensor]:
        to_values = dense_weight(layer.qkv)[2 * weights.width :].to(states)
        v = (states @ to_values.mT).view(len(states), weights.num_heads, weights.head_dim)
        yield
        attended = attend(step.q, step.k, v.to(step.q), packed).flatten(1).to(states)
        yield
        return attended @ dense_weight(layer.attention_out).to(states).mT

    return LayerView(index=step.index, before=step.before, after=step.after, mix_tokens=mix_tokens)


def _out(model: EmbeddingModel, layer: int) -> Tensor:
    """Each head's rows of the output projection: [H, D, W]."""
    weights = model.encoder.weights
    projection = dense_weight(weights.layers[layer].attention_out)  # [W, H * D]
    return projection.mT.reshape(weights.num_heads, weights.head_dim, weights.width)
