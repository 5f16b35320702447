"""The passages of one document through the encoder, linked by LLN.

Each passage is read between special tokens of its own, as if it stood alone: softmax sees nothing
but the passage, and positions begin anew. What it knows of its document is LLN's: in each layer
every passage reads one state, of the content of all of them. So one reading gives what a passage
says itself and where it says it. Without LLN the vectors are those of the passages read alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from engine.model.attention import BlockDiagonalAttention, LLNDiagAttention
from engine.model.encoder import Encoder
from engine.model.tiled_attention import PassageTile
from engine.model.tiled_pass import Projections, TiledPass
from engine.platform.row_pieces import common_count
from engine.types import Span
from kernels.attention import LLNState, PackedSequences

_LONGEST = 512
"""Tokens of a passage where nothing in the model limits them."""


def longest_passage(encoder: Encoder) -> int:
    """Most tokens that are read together, special tokens included: a block of attention, within
    the positions that the model has learned."""
    blocks = [
        one.parameters.block_size
        for one in encoder.attention
        if isinstance(one, BlockDiagonalAttention | LLNDiagAttention)
    ]
    table = encoder.weights.positions
    return min(_LONGEST, *blocks, *([] if table is None else [len(table)]))


class LinkedPass(TiledPass):
    """Reads a document's passages, each of them attended to whole by the first tile that needs it.

    What attention gives beyond that tile waits for the next one, so tiles have the same number of
    rows as in any other text, wherever passages end.
    """

    def __init__(
        self,
        encoder: Encoder,
        ids: NDArray[np.int32],
        bounds: Sequence[int],
        *,
        around: tuple[int, int],
        keep_projections: bool,
    ) -> None:
        """`ids` are those of all passages, one after the other, each between two of the bounds.
        `around` counts the tokens before and after a passage's own: every passage has the same
        ones there, so LLN's state leaves them out."""
        super().__init__(encoder, ids, keep_projections=keep_projections)
        assert (bounds[0], bounds[-1]) == (0, len(ids)), "every row is in a passage"
        self._bounds = np.asarray(bounds, dtype=np.int64)
        lengths = np.diff(self._bounds)
        self._places = np.arange(len(ids)) - np.repeat(self._bounds[:-1], lengths)
        self._length_around = np.repeat(lengths, lengths)
        before, after = around
        to_end = self._length_around - self._places
        self._is_content = (self._places >= before) & (to_end > after)
        self._fills_rows = encoder.weights.layers[0].qkv.weight.is_mkldnn
        self._attended_ahead: Tensor | None = None  # of the rows after the last tile
        self._attended_beyond: Tensor | None = None  # and of those after the tile being read

    def _positions(self, rows: Span) -> Tensor:
        places = self._places[rows.start : rows.end]
        return torch.from_numpy(places).to(self._encoder.device)

    def _lengths(self, rows: Span) -> Tensor | int:
        if not self._encoder.reads_lengths:
            return 0
        lengths = self._length_around[rows.start : rows.end]
        return torch.from_numpy(lengths).to(self._encoder.device)

    def _state_of(self, layer: int, projections: Projections, rows: Span) -> LLNState | None:
        inside = np.flatnonzero(self._is_content[rows.start : rows.end])
        content = torch.from_numpy(inside).to(self._encoder.device)
        k, v = (part.index_select(0, content) for part in (projections.k, projections.v))
        return self._attention[layer].linked_state_of(k, v)

    def _through_layer(self, rows: Span) -> tuple[Tensor, Projections | None]:
        attended = self._attended(rows)
        num_rows = rows.end - rows.start
        self._attended_beyond = attended[num_rows:].clone()  # a view would keep all of it
        states = self._states[rows.start : rows.end]
        layer = self._encoder.layers[self._layer]
        filled = layer.finish(self._filled(attended[:num_rows]), self._filled(states))
        return filled[:num_rows], None

    def _attended(self, rows: Span) -> Tensor:
        """Attention's output for these rows, and for the rest of the passage that they end in."""
        ahead = self._attended_ahead
        start = rows.start if ahead is None else rows.start + len(ahead)
        end = int(self._bounds[np.searchsorted(self._bounds, rows.end)])
        if start == end:
            assert ahead is not None, "a tile has rows"
            return ahead
        attended = self._attended_passages(Span(start, end))
        return attended if ahead is None else torch.cat([ahead, attended])

    def _attended_passages(self, rows: Span) -> Tensor:
        """The same for whole passages."""
        first, last = np.searchsorted(self._bounds, [rows.start, rows.end])
        bounds: list[int] = (self._bounds[first : last + 1] - rows.start).tolist()
        outside = [1 - (end - start) / len(self._ids) for start, end in pairwise(bounds)]
        device = self._encoder.device
        tile = PassageTile(
            *self._own(rows),
            passages=PackedSequences.of(bounds, device),
            outside=torch.tensor(outside, dtype=torch.float64).to(device),
            state=self._state,
        )
        return self._attention[self._layer].attend_passages(tile).flatten(1)

    def _take_effect(self, rows: Span) -> None:
        self._attended_ahead = self._attended_beyond

    def _project(self, layer: int, states: Tensor, rows: Span) -> Projections:
        positions, filled = self._positions(rows), self._filled(states)
        made = self._encoder.layers[layer].project(
            filled, F.pad(positions, (0, len(filled) - len(states)))
        )
        return Projections(*(part[: len(states)] for part in made))

    def _filled(self, rows: Tensor) -> Tensor:
        """Rows [n, W], and more where oneDNN would make a kernel for each number of them."""
        missing = common_count(len(rows)) - len(rows)
        if not self._fills_rows or not missing:
            return rows
        return F.pad(rows, (0, 0, 0, missing))
