"""A call like one before is launched as that was, and no other call is taken for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.attention import ArgumentError, Gate, arguments, custom_op, lln_diag_attention
from kernels.attention.packed_sequences import PackedSequences

known_calls = pytest.importorskip("kernels.attention.gpu.known_calls")
prepared = pytest.importorskip("kernels.attention.gpu.prepared")

HEADS, DIM = 3, 32
Launched = list[tuple[str, dict[str, object]]]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    """As on a GPU, up to the launches: their kernels, with what each is given."""
    found: Launched = []
    monkeypatch.setattr(custom_op, "runs_in_triton", lambda _: True)
    monkeypatch.setattr(arguments, "check_finite", lambda *_: None)
    monkeypatch.setattr(known_calls.KNOWN_CALLS, "_launches", {})

    def launch(kernel: Any, programs: object, **given: object) -> None:
        told = {name: told_of(x) for name, x in given.items()}
        found.append((kernel.fn.__name__, {"programs": programs, **told}))

    monkeypatch.setattr(prepared, "launch", launch)
    return found


def told_of(x: object) -> object:
    return (x.shape, x.stride(), x.dtype) if isinstance(x, Tensor) else x


def bounds(*ends: int) -> PackedSequences:
    return PackedSequences.of([0, *ends], torch.device("cpu"))


def rows(count: int) -> dict[str, Any]:
    """Slices of one projection, as in a layer."""
    q, k, v = torch.zeros(count, 3, HEADS, DIM, dtype=torch.bfloat16).unbind(1)
    return {"q": q, "k": k, "v": v}


SHARED = torch.ones(HEADS)
MAP = torch.ones(HEADS, DIM, DIM), torch.ones(HEADS, DIM)
PLAIN: dict[str, Any] = {"alpha": SHARED, "beta": SHARED, "mix": SHARED}
SERVED = PLAIN | {
    "mix": Gate(MAP[1], SHARED),
    "mix_scale": torch.ones(2),
    "num_sinks": (1, 1),
    "q_map": MAP,
    "k_map": (None, MAP[1]),
}


def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Tensor) -> None:
        raise AssertionError("the call was checked again")

    monkeypatch.setattr(arguments, "check_rows", fail)


@pytest.mark.parametrize("given", [PLAIN, SERVED], ids=["plain", "served"])
@pytest.mark.parametrize("ends", [(300, 400), (100, 200), (600, 600)], ids=str)
def test_a_known_call_is_launched_as_one_that_is_checked(
    given: dict[str, Any],
    ends: tuple[int, ...],
    launched: Launched,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with torch.inference_mode():
        first = lln_diag_attention(**rows(ends[-1]), cu_seqlens=bounds(*ends), **given)
        checked = launched.copy()
        launched.clear()
        unchecked(monkeypatch)
        again = lln_diag_attention(**rows(ends[-1]), cu_seqlens=bounds(*ends), **given)
    assert checked
    assert launched == checked
    assert again.shape == first.shape


def test_other_lengths_are_the_same_call(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.inference_mode():
        lln_diag_attention(**rows(400), cu_seqlens=bounds(300, 400), **SERVED)
        launched.clear()
        unchecked(monkeypatch)
        lln_diag_attention(**rows(150), cu_seqlens=bounds(70, 150), **SERVED)
    assert [name for name, _ in launched] == ["short_sequences_kernel"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"q": torch.zeros(400, HEADS, 16)}, "differ in shape"),
        ({"k": torch.zeros(400, HEADS, DIM)}, "differ in dtype"),
        ({"cu_seqlens": bounds(300, 399)}, "end at T = 400, got 399"),
        ({"alpha": torch.ones(4)}, r"\(4,\)"),
        ({"beta": torch.ones(3, HEADS)}, "3 rows for 2 sequences"),
        ({"mix_scale": torch.ones(3)}, "B = 2"),
        ({"block_size": 24}, "got 24"),
        ({"num_sinks": (1, -1)}, "must not be negative"),
        ({"q_map": (MAP[0][:, :16], MAP[1])}, "q_map's weight"),
        ({"k_map": (None, torch.ones(HEADS, DIM, device="meta"))}, "is on meta"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_call_that_differs_is_checked(
    changed: dict[str, Any], named: str, launched: Launched
) -> None:
    given = {**rows(400), "cu_seqlens": bounds(300, 400), **SERVED}
    with torch.inference_mode():
        lln_diag_attention(**given)
        with pytest.raises(ArgumentError, match=named):
            lln_diag_attention(**(given | changed))


@pytest.mark.parametrize(
    "change",
    [
        lambda given: {"alpha": 1.0, "mix": 0.5},
        lambda given: {"alpha": SHARED.double()},
        lambda given: {"q": given["q"].permute(0, 2, 1).contiguous().permute(0, 2, 1)},
        lambda given: {"k_map": (MAP[0].transpose(1, 2), MAP[1])},
    ],
    ids=["a number", "another dtype", "other channels", "a map that lies otherwise"],
)
def test_what_must_be_converted_is(
    change: Callable[[dict[str, Any]], dict[str, Any]], launched: Launched
) -> None:
    """Twice, since a call that was converted is no reason to convert no other."""
    given = {**rows(400), "cu_seqlens": bounds(300, 400), **SERVED}
    given |= change(given)
    with torch.inference_mode():
        lln_diag_attention(**given)
        first = launched.copy()
        launched.clear()
        lln_diag_attention(**given)
    assert launched == first
    for _, arguments_given in launched:
        assert arguments_given.get("p_alpha", told_of(SHARED))[2] is torch.float32  # type: ignore[index]


def test_shares_by_token_are_checked_against_the_rows(launched: Launched) -> None:
    by_token = PLAIN | {"mix": torch.ones(400, HEADS), "cu_seqlens": bounds(300, 400)}
    with torch.inference_mode():
        lln_diag_attention(**rows(400), **by_token)
        with pytest.raises(ArgumentError, match=r"got shape \(400, 3\)"):
            lln_diag_attention(**rows(200), **(by_token | {"cu_seqlens": bounds(100, 200)}))
