"""What texts cost on this machine, by a short measurement when a model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
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
_REPEATS = 2
"""The fastest counts: a pause caused by other work is no cost of ours."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """Seconds and bytes of one model's texts, beyond the bytes of the model itself."""

    call_s: float
    """What a packed pass takes however few its tokens."""

    token_s: float
    pair_s: float
    """For each pair of tokens, where a layer is softmax."""

    sample_tokens: int
    sample_bytes: int
    """Memory of a packed pass of `sample_tokens`."""

    token_bytes: float
    """Memory of each token beyond those."""

    tile: TilePrice | None
    """None where the model cannot be run in tiles."""

    def batch_seconds(self, lengths: Sequence[int]) -> float:
        """One packed pass over texts of these lengths."""
        pairs = sum(length**2 for length in lengths)
        return self.call_s + self.token_s * sum(lengths) + self.pair_s * pairs

    def packed_bytes(self, tokens: int) -> int:
        within = min(tokens, self.sample_tokens)
        beyond = tokens - within
        return int(self.sample_bytes * within / self.sample_tokens + self.token_bytes * beyond)


@dataclass(frozen=True, kw_only=True)
class TilePrice:
    """What the tiles of a text cost."""

    rows: int
    seconds: float
    """One tile through all layers when its projections are kept."""

    again_s: float
    """The extra time when projections are computed again."""

    visit_bytes: int
    """Memory of the visit of a tile, beyond what the text needs all the time."""

    lean_visit_bytes: int
    """The same when projections are computed again."""

    def seconds_for(self, tokens: int, *, keep_projections: bool) -> float:
        a_tile = self.seconds + (0.0 if keep_projections else self.again_s)
        return a_tile * tokens / self.rows

    def visit_peak(self, tokens: int, *, keep_projections: bool) -> int:
        visit = self.visit_bytes if keep_projections else self.lean_visit_bytes
        return visit * min(tokens, self.rows) // self.rows


_MEASURED: WeakKeyDictionary[Encoder, Price] = WeakKeyDictionary()


def price_of(encoder: Encoder) -> Price:
    """The price of this encoder, measured on first use. That takes less than a second where a token
    takes 0.2 ms."""
    if encoder not in _MEASURED:
        with torch.inference_mode():
            _MEASURED[encoder] = _measure(encoder)
    return _MEASURED[encoder]


def _measure(encoder: Encoder) -> Price:
    rows = tile_rows(encoder, _MANY_TOKENS) if can_tile(encoder) else 1_024
    tile = _tile_price(encoder, rows) if can_tile(encoder) else None
    call_s = _fastest(lambda: _pass(encoder, _FEW_TOKENS), encoder)
    if tile is not None:
        token_s, pair_s = tile.seconds / rows, 0.0
    else:
        pair_s = _pair_seconds(encoder)
        whole_s = _fastest(lambda: _pass(encoder, rows), encoder)
        token_s = max(whole_s - call_s - pair_s * rows**2, 0.0) / rows
    sample_bytes, double_bytes = (_peak(encoder, count * rows) for count in (1, 2))
    return Price(
        call_s=call_s,
        token_s=token_s,
        pair_s=pair_s,
        sample_tokens=rows,
        sample_bytes=sample_bytes,
        token_bytes=max(double_bytes - sample_bytes, 0) / rows,
        tile=tile,
    )


def _tile_price(encoder: Encoder, rows: int) -> TilePrice:
    weights = encoder.weights
    states = weights.words.new_zeros(rows, weights.width)
    positions = torch.arange(rows, device=encoder.device)
    again_s = _fastest(lambda: encoder.layers[0].project(states, positions), encoder)
    visit_bytes, lean_visit_bytes = (
        _tiles_peak(encoder, rows, keep_projections=keep)
        - kept_bytes(encoder, rows, keep_projections=keep)
        for keep in (True, False)
    )
    return TilePrice(
        rows=rows,
        seconds=_fastest(lambda: _run_tiles(encoder, rows, keep_projections=True), encoder),
        again_s=again_s * len(encoder.layers),
        visit_bytes=visit_bytes,
        lean_visit_bytes=lean_visit_bytes,
    )


def _run_tiles(
    encoder: Encoder, num_tokens: int, *, keep_projections: bool, layers: int | None = None
) -> None:
    ids = _some_ids(encoder, num_tokens)
    # With the blocks of a long text, which this stands for.
    tiles = TiledPass(encoder, ids, keep_projections=keep_projections, as_of_length=_MANY_TOKENS)
    while not tiles.is_done:
        if tiles.visit().layer == layers:
            return


def _tiles_peak(encoder: Encoder, num_tokens: int, *, keep_projections: bool) -> int:
    with watch_peak(encoder.device) as peak:
        _run_tiles(encoder, num_tokens, keep_projections=keep_projections, layers=1)
    return peak.peak


def _pass(encoder: Encoder, num_tokens: int, layers: int | None = None) -> None:
    ids = torch.from_numpy(_some_ids(encoder, num_tokens).astype(np.int64)).to(encoder.device)
    for _ in islice(encoder.walk(ids, [0, num_tokens]), layers):
        pass


def _peak(encoder: Encoder, num_tokens: int) -> int:
    """Two layers need as much memory at once as all of them."""
    with watch_peak(encoder.device) as peak:
        _pass(encoder, num_tokens, layers=2)
    return peak.peak


def _pair_seconds(encoder: Encoder) -> float:
    """Measured on one attention over a length whose square takes nearly all of the time."""
    weights = encoder.weights
    num_softmax = sum(isinstance(one, SoftmaxAttention) for one in encoder.attention)
    shape = (3, _SOFTMAX_TOKENS, weights.num_heads, weights.head_dim)
    q, k, v = torch.randn(shape, device=encoder.device).to(weights.words.dtype)
    packed = PackedSequences.of([0, _SOFTMAX_TOKENS], encoder.device)
    seconds = _fastest(lambda: SoftmaxAttention()(q, k, v, packed), encoder)
    return num_softmax * seconds / _SOFTMAX_TOKENS**2


def _fastest(work: Callable[[], object], encoder: Encoder) -> float:
    taken = []
    for _ in range(_REPEATS):
        started_at = perf_counter()
        work()
        if encoder.device.type == "cuda":
            torch.cuda.synchronize(encoder.device)
        taken.append(perf_counter() - started_at)
    return min(taken)


def _some_ids(encoder: Encoder, count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    vocabulary = len(encoder.weights.words)
    return np.random.default_rng(0).integers(0, vocabulary, count).astype(np.int32)
