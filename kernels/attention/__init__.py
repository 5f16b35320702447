"""LLN+Diag attention over packed sequences, its parts, and the softmax it stands in for."""

from kernels.attention.arguments import ArgumentError, Gate
from kernels.attention.functional import (
    MomentMatch,
    block_diagonal_attention,
    lln_attention,
    lln_diag_attention,
    lln_read,
    lln_state,
    paper_moment_matching,
    sliding_window_attention,
    softmax_attention,
)
from kernels.attention.packed_sequences import PackedSequences
from kernels.attention.state import LLNState, merge_states
from kernels.attention.tile import (
    TileSinks,
    block_diagonal_tile,
    lln_diag_tile,
    lln_softmax_tile,
)

__all__ = [
    "ArgumentError",
    "Gate",
    "LLNState",
    "MomentMatch",
    "PackedSequences",
    "TileSinks",
    "block_diagonal_attention",
    "block_diagonal_tile",
    "lln_attention",
    "lln_diag_attention",
    "lln_diag_tile",
    "lln_read",
    "lln_softmax_tile",
    "lln_state",
    "merge_states",
    "paper_moment_matching",
    "sliding_window_attention",
    "softmax_attention",
]
