"""The layers of an encoder that reads one text, each with all that instruments look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from engine.diagnostics import HeadView, LayerView
from engine.diagnostics.head_view import NON_FINITE
from engine.errors import DeviceFailure, InvalidInput
from engine.execution.inputs import PreparedText
from engine.execution.model_runner import pack
from engine.model.attention import (
    LLNDiagAttention,
    SlidingWindowAttention,
    SoftmaxAttention,
)
from engine.model.embedding_model import EmbeddingModel
from engine.model.encoder import Encoder
from engine.model.linear import dense_weight
from engine.model.tiled_pass import TiledPass, can_tile, kept_bytes
from engine.steps import Steps, one_step
from engine.types import Attention
from kernels.attention import PackedSequences


@dataclass(frozen=True, kw_only=True, eq=False)
class ProjectedLayer:
    """One layer up to its projections."""

    index: int
    before: Tensor  # [T, W] the states it reads
    q: Tensor  # [T, H, D]
    k: Tensor  # [T, H, D]
    v: Tensor  # [T, H, D]


@dataclass(frozen=True, kw_only=True, eq=False)
class CapturedLayer(ProjectedLayer):
    """One layer that the encoder has computed."""

    after: Tensor  # [T, W] the states it returns; valid until the next layer is computed


def capture_layers(model: EmbeddingModel, text: PreparedText) -> Iterator[Steps[CapturedLayer]]:
    """The layers in their order. Use each before the next one."""
    encoder = model.encoder
    if _is_tiled(model, text):
        tiles = TiledPass(encoder, text.ids, keep_projections=True)
        for index in range(len(encoder.layers)):
            yield _capture_tiled(tiles, index, text.num_embedded)
        return
    for layer in capture_at_once(encoder, *pack([text], encoder.device)):
        yield _captured(layer)


def states_by_layer(model: EmbeddingModel, text: PreparedText) -> Iterator[Steps[Tensor]]:
    """Copies of the states before each layer in their order, and of those after the last one."""
    encoder = model.encoder
    if _is_tiled(model, text):
        tiles = TiledPass(encoder, text.ids, keep_projections=True)
        for _ in range(len(encoder.layers) + 1):
            yield _next_states(tiles, text.num_embedded)
        return
    ids, bounds = pack([text], encoder.device)
    yield one_step(lambda: encoder.first_states(ids, bounds).clone())
    for states in encoder.walk(ids, bounds):
        yield one_step(states.clone)


def _is_tiled(model: EmbeddingModel, text: PreparedText) -> bool:
    encoder = model.encoder
    limit = model.config.sweep_tokens_on(encoder.device.type)
    return can_tile(encoder) and text.num_embedded >= limit


def _next_states(tiles: TiledPass, num_tokens: int) -> Steps[Tensor]:
    yield from _finish_layer(tiles, num_tokens)
    return tiles.states.clone()


def _capture_tiled(tiles: TiledPass, index: int, num_tokens: int) -> Steps[CapturedLayer]:
    if index == 0:
        yield from _finish_layer(tiles, num_tokens)  # the embedding
    assert tiles.projections is not None, "the pass keeps them"
    before, projections = tiles.states.clone(), tiles.projections.copied()
    yield from _finish_layer(tiles, num_tokens)
    return CapturedLayer(index=index, before=before, after=tiles.states, **projections._asdict())


def _finish_layer(tiles: TiledPass, num_tokens: int) -> Steps[None]:
    while tiles.visit().rows.end < num_tokens:
        yield


def _captured(layer: CapturedLayer) -> Steps[CapturedLayer]:
    """No steps: the layer is known."""
    yield from ()
    return layer


def capture_at_once(
    encoder: Encoder, ids: Tensor, bounds: Sequence[int]
) -> Iterator[CapturedLayer]:
    """Every layer without a pause within it, of ids [T] that are one sequence."""
    before = encoder.first_states(ids, bounds)
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    states = encoder.walk(ids, bounds, tap=lambda _, q, k, v: seen.append((q, k, v)))
    for index, after in enumerate(states):
        q, k, v = seen.pop()
        yield CapturedLayer(index=index, before=before, after=after, q=q, k=k, v=v)
        before = after


def capture_bytes(encoder: Encoder, num_tokens: int) -> int:
    """What capturing the layers of such a text takes: a pass that keeps its projections, and a copy
    of its states and projections for the instruments."""
    return 2 * kept_bytes(encoder, num_tokens, keep_projections=True)


def projection_bytes(encoder: Encoder, num_tokens: int) -> int:
    """The queries, keys and values of one layer."""
    return 3 * kept_bytes(encoder, num_tokens, keep_projections=False)


def kind_as_read(model: EmbeddingModel, layer: int, num_tokens: int) -> Attention:
    """The attention of a layer over a text of this length: LLN has no share in a single block."""
    attention = model.encoder.attention[layer]
    assert not isinstance(attention, SlidingWindowAttention), "no plan has such a layer"
    if isinstance(attention, SoftmaxAttention):
        return "softmax"
    is_one_block = num_tokens <= attention.parameters.block_of(num_tokens)
    is_mixed = isinstance(attention, LLNDiagAttention)
    return "block_diagonal" if is_mixed and is_one_block else attention.kind


def head_view(model: EmbeddingModel, layer: ProjectedLayer) -> HeadView:
    """The layer's heads as instruments see them, from what the encoder computed."""
    attention = model.encoder.attention[layer.index]
    assert not isinstance(attention, SlidingWindowAttention), "no plan has such a layer"
    softmax = _softmax_view(model, layer)
    if isinstance(attention, SoftmaxAttention):
        return softmax
    lln = attention.parameters
    num_tokens = len(layer.q)
    mix = lln.mix
    if isinstance(attention, LLNDiagAttention):
        mix = attention.shares(layer.q, num_tokens)
    return replace(
        softmax,
        attention=kind_as_read(model, layer.index, num_tokens),
        alpha=lln.alpha,
        beta=lln.beta,
        mix=mix,
        block_size=lln.block_of(num_tokens),
        num_sinks=lln.num_sinks,
        q_map=lln.q_map,
        k_map=lln.k_map,
    )


def _softmax_view(model: EmbeddingModel, layer: ProjectedLayer) -> HeadView:
    try:
        return HeadView(
            q=layer.q,
            k=layer.k,
            v=layer.v,
            x=layer.before,
            out=_output_projection(model, layer.index),
            attention="softmax",
        )
    except InvalidInput as error:
        if error.code != NON_FINITE:
            raise
        raise DeviceFailure(  # they are not the caller's
            f"queries or keys of layer {layer.index} are not finite", code="non_finite_output"
        ) from None


def layer_view(model: EmbeddingModel, layer: CapturedLayer) -> LayerView:
    """The whole layer as instruments see it."""
    weights = model.encoder.weights
    own = weights.layers[layer.index]
    attend = model.encoder.attention[layer.index]
    packed = PackedSequences.of([0, len(layer.q)], layer.q.device)

    def mix_tokens(states: Tensor) -> Steps[Tensor]:
        to_values = dense_weight(own.qkv)[2 * weights.width :].to(states)
        v = (states @ to_values.mT).view(len(states), weights.num_heads, weights.head_dim)
        yield
        attended = attend(layer.q, layer.k, v.to(layer.q), packed).flatten(1).to(states)
        yield
        return attended @ dense_weight(own.attention_out).to(states).mT

    return LayerView(
        index=layer.index, before=layer.before, after=layer.after, mix_tokens=mix_tokens
    )


def _output_projection(model: EmbeddingModel, layer: int) -> Tensor:
    """Each head's rows of the output projection: [H, D, W]."""
    weights = model.encoder.weights
    projection = dense_weight(weights.layers[layer].attention_out)  # [W, H * D]
    return projection.mT.reshape(weights.num_heads, weights.head_dim, weights.width)
