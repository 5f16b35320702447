"""Launches without Triton's search hand the driver what launches with it do."""

from __future__ import annotations

import pytest

from tests.forked import printed_by_fork

pytest.importorskip("triton")

COMPARE = """
import torch
from kernels.attention import softmax_attention
from kernels.attention.gpu.prepared import Prepared
from kernels.bench import host

launches = []

def told(x):
    if isinstance(x, torch.Tensor):
        return x.dtype, tuple(x.shape), x.stride(), x.data_ptr() % 16
    return x

def seen(run):
    launches.clear()
    run()
    # Three of Triton's are for profilers, of whom there are none.
    return [(grid, *[told(x) for x in (*given[:5], *given[8:])]) for grid, *given in launches]

def agrees(mine, other):
    # A build that is kept gets nothing where Triton's search wants some tensor.
    pairs = zip(mine, other, strict=True)
    return all(a == b or (b is None and isinstance(a, tuple)) for a, b in pairs)

device, dtype = torch.device("cpu"), torch.bfloat16
with host.no_driver(lambda *given: launches.append(given)), torch.inference_mode():
    for call in list(host.calls(device, dtype))[1:6:2]:
        searched, kept = seen(call.run), seen(call.run)
        assert all(map(agrees, searched, kept)), (call.name, searched, kept)
        assert len(searched) == len(kept)
        print(call.name, len(kept))
    rows = torch.zeros(3 * 64 * 32 + 1, dtype=dtype)
    run = lambda first: seen(
        lambda: softmax_attention(*rows[first:][: 3 * 64 * 32].view(3, 64, 1, 32))
    )
    aligned, other = run(0), run(1)
    build = 4  # among what the driver is given
    assert aligned[0][build] != other[0][build], "another build for other addresses"
    assert run(0) == aligned
    searches = []
    Prepared._keep = lambda *_: searches.append(1)
    run(0)
    assert not searches, "a build that is kept is not searched for"
"""


@pytest.mark.long
def test_what_is_kept_is_launched_as_triton_would() -> None:
    assert printed_by_fork(COMPARE, TRITON_INTERPRET="0").splitlines() == [
        "lln_diag_attention, mixed texts, maps, sinks, gate 4",
        "lln_diag_attention, one text 3",
        "softmax_attention, short texts 1",
    ]
