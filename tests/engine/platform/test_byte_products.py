"""Products of bytes in reduced range are exact under every limit on instructions."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from engine.model.int8 import byte_product, quantised
from tests.engine.precisions import needs_reduced_int8
from tests.forked import printed_by_fork

TAIL = 8


def _weights(num_out: int, num_in: int) -> dict[str, torch.Tensor]:
    drawn = torch.randn(num_out, num_in, generator=torch.Generator().manual_seed(0))
    small = torch.full((num_out, num_in), 1e-3)
    small[:, ::2] = 1
    return {
        "drawn": drawn,
        "the same everywhere": torch.ones(num_out, num_in),
        "the same, negative": -torch.ones(num_out, num_in),
        "large beside small": small,
        "of both signs": torch.where(torch.arange(num_in) % 2 == 0, 1.0, -1.0) * drawn.abs(),
        "runs of both signs": torch.where(torch.arange(num_in) % 4 < 2, 1.0, -1.0) * drawn.abs(),
    }


def _extreme_rows(integers: torch.Tensor) -> torch.Tensor:
    """Bytes whose products with some row of the weight [out, in] are as large as can be."""
    rows = torch.cat(
        [255 * (integers > 0), 255 * (integers < 0), torch.full_like(integers[:1], 1) * 255]
    )
    return F.pad(rows, (0, TAIL), value=255).to(torch.uint8)


@needs_reduced_int8
@torch.inference_mode()
@pytest.mark.parametrize(
    ("num_in", "num_out"), [(1, 1), (2, 5), (3, 16), (61, 17), (96, 33), (384, 70)]
)
def test_reduced_products_are_exact_for_the_largest_bytes(num_in: int, num_out: int) -> None:
    for name, weight in _weights(num_out, num_in).items():
        layer = quantised(weight, None, reduced=True)
        packed = layer.weight.to_dense().double()
        assert packed.abs().max() > 60, "the range is used"
        rows = _extreme_rows(packed[:-TAIL].T.long())
        expected = (rows.double() @ packed) * layer.scale
        for some in (rows, rows[:1]):
            found = byte_product(some, layer).double()
            torch.testing.assert_close(found, expected[: len(some)], rtol=1e-6, atol=0, msg=name)


@needs_reduced_int8
def test_neighbours_of_different_signs_keep_the_whole_range() -> None:
    weight = torch.tensor([[1.0, -1.0, 0.2, 0.3], [1.0, 1.0, -0.2, 0.3]])
    integers = quantised(weight, None, reduced=True).weight.to_dense()[:-TAIL].T
    assert integers[0].tolist() == [127, -127, 25, 38]
    assert integers[1, :2].tolist() == [64, 64], "two of one sign share it"


@needs_reduced_int8
@pytest.mark.parametrize("limit", ["SSE41", "AVX2", "AVX512_CORE"])
def test_pairs_are_neighbours_under_every_limit(limit: str) -> None:
    """And the trial tells: a weight beyond the reduced range comes out exact or is cut off."""
    code = (
        "import torch\n"
        "from engine.platform.byte_products import *\n"
        "w = torch.full((17, 61), 127, dtype=torch.int8)\n"
        "x = torch.full((3, 61), 255, dtype=torch.uint8)\n"
        "one, none = torch.ones(17), torch.zeros(17, dtype=torch.int64)\n"
        "y = BYTE_PRODUCT(x, *product_arguments(packed(w), one, none))\n"
        "print(adds_pairs(), int(y.min()))\n"
    )
    pairs, product = printed_by_fork(code, ONEDNN_MAX_CPU_ISA=limit).split()
    assert pairs == "True"
    whole, cut_off = 61 * 255 * 127, 30 * (2**15 - 1) + 255 * 127
    assert int(product) in ((cut_off,) if limit in ("SSE41", "AVX2") else (whole, cut_off))
