"""A long sequence, tile by tile in the Triton kernels, against the float64 reference."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.attention import TileSinks, custom_op, lln_diag_tile, merge_states, reference
from kernels.attention.state import LLNState
from tests.kernels.triton_cases import (
    DTYPES,
    Case,
    Inputs,
    assert_as_exact,
    expect_lln_diag,
    make_inputs,
    mix_of,
    plain_diag,
    plain_lln_diag,
)

forward = pytest.importorskip("kernels.attention.gpu.forward")
prepared = pytest.importorskip("kernels.attention.gpu.prepared")

pytestmark = [
    pytest.mark.usefixtures("poisoned_memory"),
    # How the interpreter of Triton 3.6 reads a loop's bounds.
    pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning"),
]

CASES = [
    *(Case((150,), head_dim=20, block_size=32, sinks=(1, 1), dtype=dtype) for dtype in DTYPES),
    Case((140,), num_heads=2, sinks=(20, 3), gate=True, weights=True, biases=True),
    Case((300,), block_size=128, sinks=(0, 2), gate=True, dtype=torch.bfloat16),
    Case((140,), sinks=(0, 0), mix_by_token=True),
]
NAMES = [*map(str, DTYPES), "many sinks, maps", "blocks of several steps", "no sinks"]


def state_of(inputs: Inputs, bounds: list[int]) -> LLNState:
    """Of all tiles, one after the other."""
    parts: list[LLNState] = [
        forward.lln_state_forward(
            inputs.k[start:end],
            inputs.v[start:end],
            beta=inputs.beta,
            cu_seqlens=torch.tensor([0, end - start], dtype=torch.int32),
            k_map=inputs.k_map,
        )
        for start, end in pairwise(bounds)
    ]
    return reduce(merge_states, parts)


def tile_sinks(inputs: Inputs, case: Case, start: int, end: int) -> TileSinks:
    first, last = case.sinks
    length = len(inputs.q)
    outside = [
        *range(first if start else 0),
        *range(length - (last if end < length else 0), length),
    ]
    inside = (0 if start else first, last if end == length else 0)
    return TileSinks(inside, inputs.k[outside], inputs.v[outside])


def tiles_of(case: Case) -> list[int]:
    """Bounds of tiles of whole blocks, of which the last may be cut short."""
    (length,) = case.lengths
    return [*range(0, length - max(case.sinks[1], 1), 64 * -(-case.block_size // 64)), length]


def by_tiles(inputs: Inputs, case: Case, *, with_state: bool) -> Tensor:
    bounds = tiles_of(case)
    assert len(bounds) > 3, "one tile is neither the first nor the last"
    lln = {"state": state_of(inputs, bounds), "alpha": inputs.alpha, "q_map": inputs.q_map}
    outs = []
    for start, end in pairwise(bounds):
        sinks = tile_sinks(inputs, case, start, end)
        mix = mix_of(inputs.mix, slice(start, end))
        of_mix = {"mix": mix, "mix_scale": inputs.mix_scale}
        outs.append(
            forward.tile_forward(
                *(x[start:end] for x in (inputs.q, inputs.k, inputs.v)),
                cu_seqlens=torch.tensor([0, end - start], dtype=torch.int32),
                block_size=case.block_size,
                num_sinks=sinks.inside,
                outside=(sinks.k, sinks.v),
                **({**lln, **of_mix} if with_state else dict.fromkeys((*lln, *of_mix))),
            )
        )
    return torch.cat(outs)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_tiles_make_up_the_sequence(case: Case) -> None:
    inputs = make_inputs(case)
    found = by_tiles(inputs, case, with_state=True)
    assert_as_exact(found, plain_lln_diag(inputs, case), expect_lln_diag(inputs, case))
    assert torch.equal(found, by_tiles(inputs, case, with_state=True))


@pytest.mark.parametrize("case", CASES[2:4], ids=NAMES[2:4])
def test_tiles_of_diag_alone(case: Case) -> None:
    inputs = make_inputs(case)
    q, k, v = inputs.q, inputs.k, inputs.v
    truth = reference.block_diagonal_attention(
        *(q, k, v), block_size=case.block_size, num_sinks=case.sinks
    )
    found = by_tiles(inputs, case, with_state=False)
    assert_as_exact(found, plain_diag(q, k, v, case), truth)


class MadeTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers what torch operations wrote that has a number for every row."""

    def __init__(self, num_rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_rows = num_rows
        self.made: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.numel() >= self.num_rows and not func.is_view:
            self.made.append(str(func))
        return result


def test_a_tile_is_one_launch_with_no_number_by_row_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = CASES[3]
    inputs = make_inputs(case)
    launched: list[str] = []
    launch = prepared.launch

    def counted(kernel: Any, *programs: int, **arguments: Any) -> None:
        launched.append(kernel.fn.__name__)
        # On a GPU no torch operation is behind a launch.
        with torch.utils._python_dispatch._disable_current_modes():
            launch(kernel, *programs, **arguments)

    monkeypatch.setattr(custom_op, "runs_in_triton", lambda _: True)
    monkeypatch.setattr(prepared, "launch", counted)
    state = state_of(inputs, tiles_of(case))
    launched.clear()
    torch.use_deterministic_algorithms(False)  # which fill the output
    rows = slice(64, 128)
    sinks = tile_sinks(inputs, case, rows.start, rows.stop)
    with MadeTensors(rows.stop - rows.start) as torch_did:
        lln_diag_tile(
            *(x[rows] for x in (inputs.q, inputs.k, inputs.v)),
            state=state,
            alpha=inputs.alpha,
            mix=inputs.mix,
            mix_scale=inputs.mix_scale,
            block_size=case.block_size,
            sinks=sinks,
            q_map=inputs.q_map,
        )
    assert launched == ["lln_diag_kernel"]
    assert torch_did.made == ["aten.new_empty.default"]
