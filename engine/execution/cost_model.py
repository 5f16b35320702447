"""What texts cost on this machine, by a short measurement when a model is loaded.

A server is not ready before it has measured, so no more is run than tells something: a few layers
of each kind stand for the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from weakref import WeakKeyDictionary

import numpy as np
import torch

from engine.model.attention import SoftmaxAttention
from engine.model.encoder import Encoder
from engine.model.tiled_pass import TiledPass, can_tile, kept_bytes, tile_rows
from engine.platform.memory import watch_peak
from kernels.attention import PackedSequences

_FEW_TOKENS = 16
_MANY_TOKENS = 1 << 20
_SOFTMAX_TOKENS = 1_536
_ID_STEP = 7_919  # prime
_REPEATS = 2
"""The fastest counts: a pause caused by other work is no cost of ours."""

_TIMED_LAYERS = 3
"""Layers of each kind that are timed. The fastest counts for all."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Bytes of one model's texts, beyond the bytes of the model itself."""

    sample_tokens: int
    sample_bytes: int
    """Memory of a packed pass of `sample_tokens`."""

    token_bytes: float
    """Memory of each token beyond those."""

    visit_bytes: int = 0
    """Memory of the visit of a tile of `sample_tokens`, beyond what the text needs all the time. 0
    where the model cannot be run in tiles."""

    lean_visit_bytes: int = 0
    """The same when projections are computed again."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """Seconds and bytes of one model's texts."""

    call_s: float
    """What a packed pass takes however few its tokens."""

    token_s: float
    pair_s: float
    """For each pair of tokens, where a layer is softmax."""

    sizes: Sizes
    tile: TilePrice | None
    """None where the model cannot be run in tiles."""

    def batch_seconds(self, lengths: Sequence[int]) -> float:
        """One packed pass over texts of these lengths."""
        pairs = sum(length**2 for length in lengths)
        return self.call_s + self.token_s * sum(lengths) + self.pair_s * pairs

    def packed_bytes(self, tokens: int) -> int:
        sizes = self.sizes
        within = min(tokens, sizes.sample_tokens)
        beyond = tokens - within
        return int(sizes.sample_bytes * within / sizes.sample_tokens + sizes.token_bytes * beyond)

    def visit_peak(self, tokens: int, *, keep_projections: bool) -> int:
        """Memory of a tile's visit, in a text of this many tokens."""
        sizes = self.sizes
        visit = sizes.visit_bytes if keep_projections else sizes.lean_visit_bytes
        return visit * min(tokens, sizes.sample_tokens) // sizes.sample_tokens


@dataclass(frozen=True, kw_only=True)
class TilePrice:
    """How long the tiles of a text take."""

    rows: int
    seconds: float
    """One tile through all layers when its projections are kept."""

    again_s: float
    """The extra time when projections are computed again."""

    def seconds_for(self, tokens: int, *, keep_projections: bool) -> float:
        a_tile = self.seconds + (0.0 if keep_projections else self.again_s)
        return a_tile * tokens / self.rows


_SIZES: WeakKeyDictionary[Encoder, Sizes] = WeakKeyDictionary()
_PRICES: WeakKeyDictionary[Encoder, Price] = WeakKeyDictionary()


def price_of(encoder: Encoder) -> Price:
    """The price of this encoder, measured on first use. That takes half a second where a token
    takes 0.2 ms, and other work at the same time makes it wrong."""
    if encoder not in _PRICES:
        with torch.inference_mode():
            _PRICES[encoder] = _measure(encoder)
    return _PRICES[encoder]


def sizes_of(encoder: Encoder) -> Sizes:
    """The bytes of that price. Other work does not change them, so a server counts them beside what
    it loads."""
    if encoder not in _SIZES:
        with torch.inference_mode():
            _SIZES[encoder] = _measure_sizes(encoder)
    return _SIZES[encoder]


def _measure(encoder: Encoder) -> Price:
    sizes = sizes_of(encoder)
    rows = sizes.sample_tokens
    tile = _tile_price(encoder, rows) if can_tile(encoder) else None
    call_s = _fastest(lambda: list(_walk(encoder, _FEW_TOKENS)), encoder)
    if tile is not None:
        token_s, pair_s = tile.seconds / rows, 0.0
    else:
        pair_s = _pair_seconds(encoder)
        whole_s = _layers_seconds(encoder, _walk(encoder, rows))
        token_s = max(whole_s - call_s - pair_s * rows**2, 0.0) / rows
    return Price(call_s=call_s, token_s=token_s, pair_s=pair_s, sizes=sizes, tile=tile)


def _measure_sizes(encoder: Encoder) -> Sizes:
    rows = tile_rows(encoder, _MANY_TOKENS) if can_tile(encoder) else 1_024
    sample_bytes, double_bytes = (_peak(encoder, count * rows) for count in (1, 2))
    sizes = Sizes(
        sample_tokens=rows,
        sample_bytes=sample_bytes,
        token_bytes=max(double_bytes - sample_bytes, 0) / rows,
    )
    if not can_tile(encoder):
        return sizes
    visit_bytes, lean_visit_bytes = (
        _tile_peak(encoder, rows, keep_projections=keep)
        - kept_bytes(encoder, rows, keep_projections=keep)
        for keep in (True, False)
    )
    return replace(sizes, visit_bytes=visit_bytes, lean_visit_bytes=lean_visit_bytes)


def _tile_price(encoder: Encoder, rows: int) -> TilePrice:
    weights = encoder.weights
    states = weights.words.new_zeros(rows, weights.width, dtype=weights.state_dtype)
    positions = torch.arange(rows, device=encoder.device)
    again_s = _fastest(lambda: encoder.layers[0].project(states, positions), encoder)
    return TilePrice(
        rows=rows,
        seconds=_layers_seconds(encoder, _tile_visits(encoder, rows, keep_projections=True)),
        again_s=again_s * len(encoder.layers),
    )


def _tile_visits(encoder: Encoder, rows: int, *, keep_projections: bool) -> Iterator[object]:
    """One tile through the layers, one with each step, after the embedding."""
    # With the blocks of a long text, which this stands for.
    tiles = TiledPass(
        encoder,
        _some_ids(encoder, rows),
        keep_projections=keep_projections,
        as_of_length=_MANY_TOKENS,
    )
    tiles.visit()
    return (tiles.visit() for _ in encoder.layers)


def _tile_peak(encoder: Encoder, rows: int, *, keep_projections: bool) -> int:
    with watch_peak(encoder.device, multiplies=False) as peak:
        next(_tile_visits(encoder, rows, keep_projections=keep_projections))
    return peak.peak


def _walk(encoder: Encoder, num_tokens: int) -> Iterator[object]:
    """A packed pass, one layer with each step."""
    ids = torch.from_numpy(_some_ids(encoder, num_tokens).astype(np.int64)).to(encoder.device)
    return encoder.walk(ids, [0, num_tokens])


def _peak(encoder: Encoder, num_tokens: int) -> int:
    """One layer needs as much memory at once as all of them."""
    with watch_peak(encoder.device, multiplies=False) as peak:
        next(_walk(encoder, num_tokens))
    return peak.peak


def _pair_seconds(encoder: Encoder) -> float:
    """Measured on one attention over a length whose square takes nearly all of the time."""
    weights = encoder.weights
    num_softmax = sum(isinstance(one, SoftmaxAttention) for one in encoder.attention)
    shape = (3, _SOFTMAX_TOKENS, weights.num_heads, weights.head_dim)
    q, k, v = torch.randn(shape, device=encoder.device).to(weights.attention_dtype)
    packed = PackedSequences.of([0, _SOFTMAX_TOKENS], encoder.device)
    seconds = _fastest(lambda: SoftmaxAttention()(q, k, v, packed), encoder)
    return num_softmax * seconds / _SOFTMAX_TOKENS**2


def _layers_seconds(encoder: Encoder, steps: Iterator[object]) -> float:
    """The time of all layers, one of which each step runs. Layers of one kind take the same."""
    kinds = [
        (attention.kind, layer.half_window)
        for attention, layer in zip(encoder.attention, encoder.weights.layers, strict=True)
    ]
    missing = {kind: min(count, _TIMED_LAYERS) for kind, count in Counter(kinds).items()}
    fastest: dict[object, float] = {}
    for kind in kinds:
        if not any(missing.values()):
            break
        taken = _seconds(lambda: next(steps), encoder)
        fastest[kind] = min(taken, fastest.get(kind, taken))
        missing[kind] = max(missing[kind] - 1, 0)
    return sum(fastest[kind] for kind in kinds)


def _fastest(work: Callable[[], object], encoder: Encoder) -> float:
    return min(_seconds(work, encoder) for _ in range(_REPEATS))


def _seconds(work: Callable[[], object], encoder: Encoder) -> float:
    started_at = perf_counter()
    work()
    if encoder.device.type == "cuda":
        torch.cuda.synchronize(encoder.device)
    return perf_counter() - started_at


def _some_ids(encoder: Encoder, count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """From all over the vocabulary. A server has no other use for numpy.random."""
    return (np.arange(count) * _ID_STEP % len(encoder.weights.words)).astype(np.int32)
