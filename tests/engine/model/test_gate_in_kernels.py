"""On a GPU no tensor holds LLN's share of each token: attention's kernels compute it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.model.attention import LLNDiagAttention
from engine.model.lln_parameters import LLNParameters
from engine.model.tiled_attention import Tile
from kernels.attention import LLNState, PackedSequences, TileSinks, arguments, custom_op

prepared = pytest.importorskip("kernels.attention.gpu.prepared")

HEADS, DIM, BLOCK = 3, 32, 64
ROWS = 400


def attention(*, gate: bool) -> LLNDiagAttention:
    """As of the models that ship."""
    each = torch.linspace(0.2, 0.8, HEADS)
    parameters = LLNParameters(
        alpha=each,
        beta=each,
        mix=each,
        key_shift=torch.zeros(HEADS, DIM),
        block_size=BLOCK,
        num_sinks=(1, 1),
        query_map=torch.eye(DIM).repeat(HEADS, 1, 1),
        key_map=torch.eye(DIM).repeat(HEADS, 1, 1),
        gate=torch.ones(HEADS, DIM) if gate else None,
    )
    return LLNDiagAttention(parameters)


def rows(count: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.zeros(3, count, HEADS, DIM, dtype=torch.bfloat16)
    return q, k, v


class Passes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Torch operations that read or write a number for every row, and do not only make room."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in (*args, result) if isinstance(x, Tensor)]
        makes_room = "empty" in str(func) or func.is_view
        if not makes_room and any(len(x) >= ROWS for x in tensors if x.dim()):
            self.seen.append(str(func))
        return result


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As on a GPU, up to the launches: their names."""
    names: list[str] = []
    monkeypatch.setattr(custom_op, "runs_in_triton", lambda _: True)
    monkeypatch.setattr(custom_op, "is_untraced", lambda _: True)
    monkeypatch.setattr(arguments, "check_finite", lambda *_: None)

    def launch(kernel: Any, *_: object, **__: object) -> None:
        names.append(kernel.fn.__name__)

    monkeypatch.setattr(prepared, "launch", launch)
    return names


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize(
    ("lengths", "kernels"),
    [
        ((400,), ["lln_state_kernel", "lln_diag_kernel"]),
        ((100, 300), ["short_sequences_kernel", "lln_state_kernel", "lln_diag_kernel"]),
        ((200, 200), ["short_sequences_kernel"]),
    ],
    ids=["one text", "short and long texts", "short texts"],
)
def test_a_batch_is_its_launches(
    lengths: tuple[int, ...], kernels: list[str], gate: bool, launched: list[str]
) -> None:
    attend, (q, k, v) = attention(gate=gate), rows(sum(lengths))
    packed = PackedSequences.of([0, lengths[0], sum(lengths)][: len(lengths) + 1], q.device)
    with torch.inference_mode():
        attend(q, k, v, packed)  # the first layer finds out what the others know
        launched.clear()
        with Passes() as torch_did:
            attend(q, k, v, packed)
    assert (launched, torch_did.seen) == (kernels, [])


@pytest.mark.parametrize("gate", [True, False])
def test_a_tile_is_its_launch(gate: bool, launched: list[str]) -> None:
    attend, (q, k, v) = attention(gate=gate), rows(ROWS)
    state = LLNState(torch.zeros(1, HEADS, DIM), torch.zeros(1, HEADS, DIM, DIM))
    sinks = TileSinks((0, 0), k[:2], v[:2])
    tile = Tile(q=q, k=k, v=v, before=0, length=10 * ROWS, state=state, sinks=sinks)
    with torch.inference_mode(), Passes() as torch_did:
        attend.attend_tile(tile)
    assert (launched, torch_did.seen) == (["lln_diag_kernel"], [])


def test_shares_are_those_of_the_calibration() -> None:
    """On a CPU, to the last bit: the formula that calibrations are made for."""
    attend, (q, _, _) = attention(gate=True), rows(ROWS)
    q = torch.randn(q.shape, generator=torch.Generator().manual_seed(0))
    parameters = attend.parameters
    assert parameters.gate is not None
    logits = (q * parameters.gate).sum(-1) + torch.logit(parameters.mix)
    expected = (torch.tanh(logits / 2) + 1) / 2 * (1 - BLOCK / ROWS)
    assert torch.equal(attend.shares(q, ROWS), expected)
    assert math.isclose(float(attend.shares(q[:BLOCK], BLOCK).abs().max()), 0)
