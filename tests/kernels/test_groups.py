"""Pieces of long sequences are put together in two levels, by the sequence alone."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from kernels.attention import LLNState, reference
from tests.kernels.triton_cases import DEVICE

constants = pytest.importorskip("kernels.attention.gpu.constants")
forward = pytest.importorskip("kernels.attention.gpu.forward")
groups = pytest.importorskip("kernels.attention.gpu.groups")
pieces = pytest.importorskip("kernels.attention.gpu.pieces")

pytestmark = [
    pytest.mark.usefixtures("poisoned_memory", "short_pieces"),
    # How the interpreter of Triton 3.6 reads a loop's bounds.
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
]

PIECE = 64  # as short_pieces has it
NUM_HEADS, HEAD_DIM = 2, 16
LENGTHS = (32 * PIECE + 1, 0, 5, 3 * PIECE, 17 * PIECE, 16 * PIECE)


@pytest.fixture
def one_level(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(groups, "ONE_LEVEL", 1 << 20)
    constants.forget_constants()
    yield
    monkeypatch.undo()
    constants.forget_constants()


def serial_steps(num_pieces: int) -> int:
    """Steps, one after the other, that it takes to put a sequence together."""
    size: int = groups.group_pieces(num_pieces)
    return -(-num_pieces // size) + (size if size > 1 else 0)


def test_no_chain_is_much_longer_than_twice_the_root() -> None:
    for num_pieces in range(1, 1 << 12):
        allowed = max(groups.ONE_LEVEL, 1.5 * math.sqrt(2 * num_pieces) + 1)
        assert serial_steps(num_pieces) <= allowed
    of_a_million_tokens = (1 << 20) // 1024
    assert serial_steps(of_a_million_tokens) == 64


def test_groups_grow_with_the_sequence() -> None:
    """The smallest tells how many slots there must be."""
    sizes = [groups.group_pieces(num_pieces) for num_pieces in range(groups.ONE_LEVEL + 1, 1 << 12)]
    assert sizes == sorted(sizes)
    assert sizes[0] > 1


def parts_of(lengths: tuple[int, ...], size: int) -> tuple[Tensor, Tensor]:
    """What pieces left, with NaN in slots that no piece owns; and the bounds."""
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
    slots = sum(lengths) // PIECE + len(lengths)
    parts = torch.full((slots, NUM_HEADS, size), math.nan)
    for index, length in enumerate(lengths):
        first = int(cu_seqlens[index]) // PIECE + index
        count = -(-length // PIECE)
        generator = torch.Generator().manual_seed(length)
        values = torch.randn(count, NUM_HEADS, size, generator=generator)
        parts[first : first + count] = values * torch.exp(4 * values)
    return parts.to(DEVICE), cu_seqlens.to(DEVICE)


def in_two_levels(parts: Tensor) -> Tensor:
    """As the kernels add, in their order."""
    size = groups.group_pieces(len(parts))
    whole = torch.zeros_like(parts[0])
    for group in torch.split(parts, size):
        total = torch.zeros_like(whole)
        for part in group:
            total = total + part
        whole = whole + total
    return whole


def test_pieces_are_added_up_by_groups_in_their_order() -> None:
    size = 48
    parts, cu_seqlens = parts_of(LENGTHS, size)
    given = parts.clone()
    sums = torch.full((len(LENGTHS), NUM_HEADS, size), math.nan, device=DEVICE)
    pieces.add_pieces(parts, cu_seqlens, sums, PIECE, sum(LENGTHS))
    for index, length in enumerate(LENGTHS):
        first, count = int(cu_seqlens[index]) // PIECE + index, -(-length // PIECE)
        if count > 1:
            assert torch.equal(sums[index], in_two_levels(given[first : first + count])), length
        else:
            assert bool(sums[index].isnan().all()), "a sequence of one piece is done already"


def test_no_batch_moves_a_bit_of_a_sum() -> None:
    size = 48
    sums = torch.empty(len(LENGTHS), NUM_HEADS, size, device=DEVICE)
    parts, cu_seqlens = parts_of(LENGTHS, size)
    pieces.add_pieces(parts, cu_seqlens, sums, PIECE, sum(LENGTHS))
    for index, length in enumerate(LENGTHS):
        alone = torch.empty(1, NUM_HEADS, size, device=DEVICE)
        pieces.add_pieces(*parts_of((length,), size), alone, PIECE, length)
        if length > PIECE:
            assert torch.equal(alone[0], sums[index])


def rows(lengths: tuple[int, ...], drift: float) -> tuple[Tensor, Tensor, Tensor]:
    """Keys whose scores rise or fall by `drift` along each sequence, far beyond what exp holds."""
    found = []
    for length in lengths:
        generator = torch.Generator().manual_seed(length)
        k, v = torch.randn(2, length, NUM_HEADS, HEAD_DIM, generator=generator)
        found.append((6 * k + torch.linspace(0, drift, length)[:, None, None], v))
    k, v = (torch.cat(each).to(DEVICE) for each in zip(*found, strict=True))
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32).to(DEVICE)
    return k, v, cu_seqlens


def state_of(lengths: tuple[int, ...], drift: float) -> LLNState:
    k, v, cu_seqlens = rows(lengths, drift)
    beta = torch.ones(len(lengths), NUM_HEADS, device=DEVICE)
    state: LLNState = forward.lln_state_forward(k, v, beta=beta, cu_seqlens=cu_seqlens, k_map=None)
    return state


@pytest.mark.long
@pytest.mark.parametrize("drift", [0.0, 30.0, -150.0])
def test_two_levels_are_as_exact_as_one(drift: float, request: pytest.FixtureRequest) -> None:
    lengths = (17 * PIECE + 1, PIECE + 1)
    found = state_of(lengths, drift)
    request.getfixturevalue("one_level")
    single = state_of(lengths, drift)
    k, v, cu_seqlens = rows(lengths, drift)
    beta = torch.ones(len(lengths), NUM_HEADS, device=DEVICE)
    truth = reference.lln_state(k, v, beta=beta, cu_seqlens=cu_seqlens)
    for mine, other, expected in zip(found, single, truth, strict=True):
        floor = 2 * torch.finfo(torch.float32).eps * float(expected.abs().max())
        errors = [(each.double() - expected).abs() for each in (mine, other)]
        assert float(errors[0].max()) <= float(errors[1].max()) + floor


def test_no_batch_moves_a_bit_of_a_state() -> None:
    together = state_of(LENGTHS, 40.0)
    for index, length in enumerate(LENGTHS):
        for part, alone in zip(together, state_of((length,), 40.0), strict=True):
            assert torch.equal(part[index], alone[0]), length


def test_groups_change_the_order_of_the_sum(request: pytest.FixtureRequest) -> None:
    """Or the comparisons above would compare one level with itself."""
    found = state_of((17 * PIECE,), 0.0)
    request.getfixturevalue("one_level")
    assert not torch.equal(found.value, state_of((17 * PIECE,), 0.0).value)
