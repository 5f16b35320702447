"""The public operations reject invalid arguments, and the error names the value."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from kernels.attention import ArgumentError, Gate, LLNState, lln_diag_attention, lln_read
from kernels.attention.packed_sequences import PackedSequences, check_cu_seqlens

GOOD: dict[str, Any] = {"alpha": 1.0, "beta": 1.0}
QKV = tuple(torch.zeros(10, 2, 32) for _ in range(3))


def bounds(*values: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"cu_seqlens": bounds(1, 10)}, "start at 0, got 1"),
        ({"cu_seqlens": bounds(0, 9)}, "end at T = 10, got 9"),
        ({"cu_seqlens": bounds(0, 7, 5, 10)}, "falls from 7 to 5 at 1"),
        ({"cu_seqlens": bounds(0, 10, dtype=torch.int64)}, "int64"),
        ({"cu_seqlens": bounds(0, 10).view(1, 2)}, r"\(1, 2\)"),
        ({"cu_seqlens": bounds()}, r"\(0,\)"),
        ({"block_size": 24}, "got 24"),
        ({"block_size": 0}, "got 0"),
        ({"num_sinks": -1}, "got -1"),
        ({"alpha": float("nan")}, "alpha must be finite, got nan"),
        ({"beta": torch.tensor([1.0, float("inf")])}, "beta must be finite"),
        ({"alpha": torch.ones(3)}, r"\(3,\)"),
        ({"beta": torch.ones(4, 2)}, "4 rows for 1 sequences"),
        ({"mix": torch.ones(9, 2)}, r"\(9, 2\)"),
        ({"mix": float("inf")}, "mix must be finite, got inf"),
        ({"mix": torch.tensor([0.5, float("nan")])}, "mix must be finite"),
        ({"mix": Gate(torch.ones(2, 31), torch.ones(2))}, r"\(2, 32\), got \(2, 31\)"),
        ({"mix": Gate(torch.ones(2, 32), torch.ones(10, 2))}, r"\(2,\), got \(10, 2\)"),
        ({"mix": Gate(torch.full((2, 32), float("nan")), torch.ones(2))}, "must be finite"),
        ({"mix_scale": torch.ones(2)}, r"B = 1, got shape \(2,\)"),
        ({"mix_scale": float("nan")}, "mix_scale must be finite, got nan"),
        ({"num_sinks": (1, -2)}, r"got \(1, -2\)"),
        ({"q_map": (torch.ones(2, 32, 31), torch.ones(2, 32))}, r"\(2, 32, 31\)"),
        ({"k_map": (None, torch.ones(2, 31))}, r"\(2, 31\)"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_settings(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        lln_diag_attention(*QKV, **(GOOD | changed))


@pytest.mark.parametrize(
    ("index", "replacement", "named"),
    [
        (0, torch.zeros(10, 64), r"\(10, 64\)"),
        (1, torch.zeros(10, 2, 64), r"\(10, 2, 64\)"),
        (2, torch.zeros(10, 2, 32, dtype=torch.float64), "dtype"),
        (2, torch.zeros(11, 2, 32), r"\(11, 2, 32\)"),
        (1, torch.zeros(10, 2, 32, device="meta"), "device: cpu and meta"),
        (0, torch.zeros(10, 0, 32), r"no heads, shape \(10, 0, 32\)"),
    ],
)
def test_rows_that_do_not_fit(index: int, replacement: torch.Tensor, named: str) -> None:
    rows = list(QKV)
    rows[index] = replacement
    with pytest.raises(ArgumentError, match=named):
        lln_diag_attention(*rows, **GOOD)


@pytest.mark.parametrize("dim", [8, 257])
def test_head_sizes_out_of_range(dim: int) -> None:
    rows = [torch.zeros(4, 1, dim)] * 3
    with pytest.raises(ArgumentError, match=f"16 to 256, got {dim}"):
        lln_diag_attention(*rows, **GOOD)


def test_dtypes_that_are_not_numbers_to_attend_with() -> None:
    rows = [torch.zeros(4, 1, 16, dtype=torch.int32)] * 3
    with pytest.raises(ArgumentError, match="int32"):
        lln_diag_attention(*rows, **GOOD)


def test_a_state_of_other_heads() -> None:
    state = LLNState(torch.zeros(1, 3, 32), torch.zeros(1, 3, 32, 32))
    with pytest.raises(ArgumentError, match=r"\(1, 3, 32\)"):
        lln_read(QKV[0], state, alpha=1.0)


def test_shortest_and_longest_are_looked_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = PackedSequences.of([0, 3, 3, 10], torch.device("cpu"))
    assert (packed.shortest, packed.longest) == (0, 7)
    monkeypatch.setattr("kernels.attention.packed_sequences.itertools.pairwise", None)
    assert (packed.shortest, packed.longest) == (0, 7)
    unknown = PackedSequences(packed.cu_seqlens, None)
    assert (unknown.shortest, unknown.longest) == (None, None)


def test_bounds_of_one_sequence_are_kept_unless_a_mode_of_torch_made_them() -> None:
    rows = torch.zeros(7, 1, 16)
    kept = check_cu_seqlens(None, rows)
    assert check_cu_seqlens(None, rows) is kept
    assert kept.cu_seqlens.tolist() == [0, 7]
    with FakeTensorMode():
        check_cu_seqlens(None, torch.zeros(8, 1, 16))
    made = check_cu_seqlens(None, torch.zeros(8, 1, 16))
    assert (made.cu_seqlens.tolist(), made.bounds) == ([0, 8], (0, 8))
