"""The Triton forward kernels against the float64 reference."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.attention import PackedSequences, reference
from kernels.attention.gpu import tiles
from tests.kernels.triton_cases import (
    DEVICE,
    DTYPES,
    OF_THREE_HEADS,
    Case,
    Inputs,
    assert_as_exact,
    expect_lln_diag,
    make_inputs,
    only,
    plain_diag,
    plain_lln_diag,
)

constants = pytest.importorskip("kernels.attention.gpu.constants")
forward = pytest.importorskip("kernels.attention.gpu.forward")
launch = pytest.importorskip("kernels.attention.gpu.launch")
prepared = pytest.importorskip("kernels.attention.gpu.prepared")

pytestmark = [
    pytest.mark.usefixtures("poisoned_memory", "two_passes"),
    # How the interpreter of Triton 3.6 reads a loop's bounds.
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
]


def run_lln_diag(inputs: Inputs, case: Case) -> Tensor:
    out: Tensor = forward.attention_forward(
        **vars(inputs), block_size=case.block_size, num_sinks=case.sinks
    )[0]
    return out


def test_fresh_buffers_are_poisoned() -> None:
    assert bool(torch.empty(8, device=DEVICE).isnan().all())
    assert bool(torch.ones(1, device=DEVICE).new_empty(8).isnan().all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [16, 60, 128])
def test_lln_diag_on_ragged_batches(head_dim: int, dtype: torch.dtype) -> None:
    check_lln_diag(Case(head_dim=head_dim, dtype=dtype, sinks=(1, 1), block_size=32))


@pytest.mark.parametrize("length", [1, 63, 500])
def test_lln_diag_on_odd_lengths(length: int) -> None:
    check_lln_diag(Case(lengths=(length,)))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(block_size=16), id="many blocks a tile"),
        pytest.param(Case(block_size=48), id="blocks that do not fill a tile"),
        pytest.param(Case(block_size=80), id="blocks of uneven tiles"),
        pytest.param(Case(block_size=512), id="blocks longer than the sequences"),
        pytest.param(
            Case((270,), block_size=256, sinks=(1, 1), mix_by_token=True, dtype=torch.bfloat16),
            id="large blocks in bfloat16",
        ),
        pytest.param(Case((200,), block_size=192, dtype=torch.float16), id="and in float16"),
        pytest.param(Case(block_size=128, sinks=(3, 2)), id="sinks inside and outside blocks"),
        pytest.param(Case(lengths=(5, 1, 0, 2), sinks=(3, 4)), id="sinks that overlap"),
        pytest.param(Case(lengths=(70,), sinks=(20, 0), block_size=16), id="many sinks"),
        pytest.param(Case(num_heads=2, mix_by_token=True), id="mix by token"),
        pytest.param(Case(num_heads=2, gate=True, head_dim=20), id="gate"),
        pytest.param(Case(lengths=(40, 150), gate=True, block_size=128), id="gate, large blocks"),
        pytest.param(Case(num_heads=2, weights=True, biases=True, head_dim=60), id="maps"),
        pytest.param(Case(biases=True), id="biases alone"),
        pytest.param(
            Case(lengths=(40,), head_dim=256, weights=True, biases=True),
            id="256 mapped",
        ),
        pytest.param(Case(lengths=(40,), head_dim=200), id="200, channels in steps"),
        pytest.param(Case(lengths=(*[0] * 130, 5, 3), head_dim=16), id="many sequences"),
        pytest.param(Case(weights=True, biases=True, dtype=torch.bfloat16), id="bfloat16 maps"),
        pytest.param(Case(block_size=128, gate=True, dtype=torch.float16), id="float16 gate"),
    ],
)
def test_lln_diag_in_every_form(case: Case) -> None:
    check_lln_diag(case)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy remarks on what overflows
@pytest.mark.parametrize("block_size", [64, 256])
@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float32, 60.0), (torch.bfloat16, 60.0), (torch.float16, 15.0)]
)
def test_scores_far_beyond_what_exp_can_hold(
    dtype: torch.dtype, scale: float, block_size: int
) -> None:
    case = Case(scale=scale, dtype=dtype, block_size=block_size)
    assert float(make_inputs(case).k.exp().max()) == math.inf
    check_lln_diag(case)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_mass_over_the_limit_is_found_again_as_without_one(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(lengths=(150,), block_size=144, sinks=(1, 1), mix_by_token=True, dtype=dtype)
    inputs = make_inputs(case)
    found = {}
    for limit in (0.0, 1e-30, 2.0**15):
        monkeypatch.setattr(constants, "_mass_limit", lambda *_, limit=limit: limit)
        constants.forget_constants()
        found[limit] = run_lln_diag(inputs, case)
    constants.forget_constants()
    assert torch.equal(found[1e-30], found[0.0])
    assert not torch.equal(found[2.0**15], found[0.0])
    assert_as_exact(found[2.0**15], plain_lln_diag(inputs, case), expect_lln_diag(inputs, case))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(lengths=(63, 0, 130), sinks=(1, 1), mix_by_token=True), id="ragged"),
        pytest.param(Case(lengths=(70, 9), gate=True, weights=True, biases=True), id="maps, gate"),
        pytest.param(Case(lengths=(150, 1), block_size=128, dtype=torch.bfloat16), id="tiles"),
        pytest.param(Case(lengths=(9,), head_dim=60), id="60"),
    ],
)
def test_short_sequences_in_one_launch(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "SHORT_TOKENS", 150)
    check_lln_diag(case)


@pytest.mark.parametrize(
    ("captured_with", "replayed_with"),
    [
        pytest.param((60, 60, 60), (170, 0, 10), id="short, then long"),
        pytest.param((180, 0, 0), (60, 60, 60), id="long, then short"),
        pytest.param((180,), (90,), id="one, then fewer rows"),
    ],
)
def test_a_captured_graph_holds_the_launches_for_any_bounds(
    captured_with: tuple[int, ...],
    replayed_with: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU: a replay repeats the launches of its capture, whatever the bounds now are."""
    monkeypatch.setattr(tiles, "SHORT_TOKENS", 100)
    launched: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    monkeypatch.setattr(forward, "is_captured", lambda _: True)
    monkeypatch.setattr(
        prepared.Prepared,
        "__call__",
        lambda *names, **arguments: launched.append((names, arguments)),
    )
    case = Case(lengths=captured_with, head_dim=16, dtype=torch.bfloat16)
    inputs = make_inputs(case)
    rows = replace(case, lengths=replayed_with)
    known = {"shortest": min(captured_with), "longest": max(captured_with)}
    out, _ = forward.attention_forward(**vars(inputs), block_size=64, **known)
    monkeypatch.undo()
    inputs.cu_seqlens.copy_(make_inputs(rows).cu_seqlens)
    for (run, *names), arguments in launched:
        run(*names, **arguments)
    end = sum(replayed_with)
    replayed = replace(inputs, q=inputs.q[:end], k=inputs.k[:end], v=inputs.v[:end])
    assert_as_exact(out[:end], plain_lln_diag(replayed, rows), expect_lln_diag(replayed, rows))


@pytest.mark.parametrize(
    ("case", "short"),
    [
        pytest.param(Case((70, 0, 150, 33), num_heads=2, sinks=(1, 1)), 40, id="short ones"),
        pytest.param(Case((0, 150, 90), block_size=80, dtype=torch.bfloat16), -1, id="uneven"),
        pytest.param(Case((9, 70, 64), block_size=16), -1, id="many blocks a tile"),
    ],
)
def test_listed_tiles_are_those_that_programs_search_for(
    case: Case, short: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "SHORT_TOKENS", short)
    inputs = make_inputs(case)
    packed = PackedSequences.of(inputs.cu_seqlens.tolist(), DEVICE)
    branches = {"block_size": case.block_size, "num_sinks": case.sinks}
    listed, _ = forward.attention_forward(**vars(inputs), **branches, packed=packed)
    assert torch.equal(listed, run_lln_diag(inputs, case))
    (tile_list,) = (x for x in packed.kept.values() if isinstance(x, Tensor))
    assert set(tile_list[:, 0].tolist()) == {
        i for i, n in enumerate(case.lengths) if n > max(short, 0)
    }
    rows = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "cu_seqlens": inputs.cu_seqlens}
    softmax, _ = forward.attention_forward(**rows, packed=packed)
    assert torch.equal(softmax, forward.attention_forward(**rows)[0])


def test_a_captured_graph_searches_for_its_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be replayed with other bounds than those that a list is made of."""
    monkeypatch.setattr(forward, "is_captured", lambda _: True)
    case = Case((40, 30), head_dim=16)
    inputs = make_inputs(case)
    packed = PackedSequences.of(inputs.cu_seqlens.tolist(), DEVICE)
    forward.attention_forward(**vars(inputs), block_size=case.block_size, packed=packed)
    assert not packed.kept


def test_slots_beyond_one_axis_of_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case((150, 0, 130), num_heads=2, head_dim=16)
    inputs = make_inputs(case)
    expected = run_lln_diag(inputs, case)
    packed = PackedSequences.of(inputs.cu_seqlens.tolist(), DEVICE)
    monkeypatch.setattr(launch, "MOST_ON_AXIS", 2)
    assert torch.equal(run_lln_diag(inputs, case), expected)
    listed, _ = forward.attention_forward(**vars(inputs), block_size=case.block_size, packed=packed)
    assert torch.equal(listed, expected)


@pytest.mark.usefixtures("short_pieces")
@pytest.mark.parametrize("case", OF_THREE_HEADS, ids=["ragged", "maps"])
def test_several_heads_of_several_pieces(case: Case) -> None:
    check_lln_diag(case)


def check_lln_diag(case: Case) -> None:
    inputs = make_inputs(case)
    found, plain = run_lln_diag(inputs, case), plain_lln_diag(inputs, case)
    sharpness = max(1.0, case.scale**2)  # Diag's scores are products of two
    assert_as_exact(found, plain, expect_lln_diag(inputs, case), sharpness=sharpness)


@pytest.mark.parametrize("sinks", [(0, 0), (1, 1)])
def test_block_diagonal(sinks: tuple[int, int]) -> None:
    case = Case(sinks=sinks)
    inputs = make_inputs(case)
    q, k, v, cu_seqlens = inputs.q, inputs.k, inputs.v, inputs.cu_seqlens
    plain = torch.cat([plain_diag(q[rows], k[rows], v[rows], case) for rows in inputs.bounds])
    found, _ = forward.attention_forward(
        q, k, v, cu_seqlens=cu_seqlens, block_size=case.block_size, num_sinks=sinks
    )
    truth = reference.block_diagonal_attention(
        q, k, v, cu_seqlens=cu_seqlens, block_size=case.block_size, num_sinks=sinks
    )
    assert_as_exact(found, plain, truth)


@pytest.mark.usefixtures("short_pieces")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(lengths=(150, 0, 64, 65), head_dim=16), id="pieces"),
        pytest.param(Case(weights=True, biases=True), id="maps"),
        pytest.param(Case(biases=True, head_dim=16, lengths=(100, 0)), id="biases alone"),
        pytest.param(Case(lengths=(0, 0)), id="nothing"),
    ],
)
def test_lln_state_and_read(case: Case) -> None:
    inputs = make_inputs(case)
    cu_seqlens, q_map, k_map = inputs.cu_seqlens, inputs.q_map, inputs.k_map
    state = forward.lln_state_forward(
        inputs.k, inputs.v, beta=inputs.beta, cu_seqlens=cu_seqlens, k_map=k_map
    )
    truth = reference.lln_state(
        inputs.k, inputs.v, beta=inputs.beta, cu_seqlens=cu_seqlens, k_map=k_map
    )
    torch.testing.assert_close(state.log_mass.double(), truth.log_mass, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(state.value.double(), truth.value, rtol=0, atol=2e-6)
    found = forward.lln_read_forward(
        inputs.q, state, alpha=inputs.alpha, cu_seqlens=cu_seqlens, q_map=q_map
    )
    expected = reference.lln_read(
        inputs.q, truth, alpha=inputs.alpha, cu_seqlens=cu_seqlens, q_map=q_map
    )
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=4e-6)


@pytest.mark.parametrize("lengths", [(), (0,), (0, 0)])
def test_nothing_to_do(lengths: tuple[int, ...]) -> None:
    case = Case(lengths=lengths, num_heads=2)
    assert run_lln_diag(make_inputs(case), case).shape == (0, 2, 32)


def test_slices_of_one_projection() -> None:
    case = Case(num_heads=2)
    inputs = make_inputs(case)
    fused = torch.stack([inputs.q, inputs.k, inputs.v], dim=1)
    q, k, v = fused.unbind(1)
    assert not q.is_contiguous()
    found = run_lln_diag(replace(inputs, q=q, k=k, v=v), case)
    assert torch.equal(found, run_lln_diag(inputs, case))


@pytest.mark.usefixtures("short_pieces")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_sequence_is_the_same_whatever_shares_its_batch(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "SHORT_TOKENS", 40)
    case = Case(lengths=(70, 0, 150, 33), head_dim=16, sinks=(1, 1), gate=True, dtype=dtype)
    inputs = make_inputs(case)
    together = run_lln_diag(inputs, case)
    assert torch.equal(together, run_lln_diag(inputs, case))
    for index, rows in enumerate(inputs.bounds):
        alone = run_lln_diag(only(inputs, index), replace(case, lengths=(rows.stop - rows.start,)))
        assert torch.equal(together[rows], alone)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy remarks on NaN in the interpreter
@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize("broken", ["q", "k", "v"])
def test_what_is_not_finite_shows_in_its_sequence_alone(broken: str, value: float) -> None:
    case = Case(lengths=(40, 70, 50), sinks=(1, 1))
    inputs = make_inputs(case)
    clean = run_lln_diag(inputs, case)
    poisoned = getattr(inputs, broken).clone()
    poisoned[45, 0, 7] = value
    found = run_lln_diag(replace(inputs, **{broken: poisoned}), case)
    first, second, third = inputs.bounds
    assert torch.equal(found[first], clean[first])
    assert torch.equal(found[third], clean[third])
    # A query is read in its own row alone; a key or a value reaches all rows of its sequence.
    hurt = found[45] if broken == "q" else found[second]
    assert bool(hurt.isnan().all())
