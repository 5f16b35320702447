"""Rows are filled up to a few numbers, since oneDNN keeps a kernel for each, and change no bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.model.embedding_model import EmbeddingModel
from engine.platform.row_pieces import common_count
from tests.engine.model.readings import some_ids
from tests.engine.precisions import BFLOAT16, INT8_FORMS
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

PRECISIONS = [pytest.param("float32"), BFLOAT16, *INT8_FORMS]


class ProductRows(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records how many rows oneDNN's products have."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if "pointwise" in str(func):
            self.seen.add(len(args[0]))
        return func(*args, **(kwargs or {}))


def small_model(write_checkpoint: WriteCheckpoint, dtype: str) -> EmbeddingModel:
    return calibrated(write_checkpoint("bert"), block_size=64, num_sinks=(1, 1), dtype=dtype)


@pytest.mark.parametrize("dtype", PRECISIONS)
@torch.inference_mode()
def test_products_have_few_numbers_of_rows(dtype: str, write_checkpoint: WriteCheckpoint) -> None:
    encoder = small_model(write_checkpoint, dtype).encoder
    rows = ProductRows()
    with rows:
        for length in range(1, 90, 2):
            encoder(torch.from_numpy(some_ids(length)).long(), [0, length])
            encoder(torch.from_numpy(some_ids(length + 5)).long(), [0, length, length + 5])
    assert rows.seen
    assert len(rows.seen) <= 12


@pytest.mark.parametrize("dtype", PRECISIONS)
@torch.inference_mode()
def test_a_filled_batch_has_the_bits_of_its_texts(
    dtype: str, write_checkpoint: WriteCheckpoint
) -> None:
    encoder = small_model(write_checkpoint, dtype).encoder
    for lengths in ((1, 1), (3, 14), (40, 90, 70), (15, 2), (200, 31)):
        ids = [torch.from_numpy(some_ids(length)).long() for length in lengths]
        bounds = [0, *torch.tensor(lengths).cumsum(0).tolist()]
        states = encoder(torch.cat(ids), bounds)
        assert len(states) == bounds[-1]
        for number, own in enumerate(ids):
            alone = encoder(own, [0, len(own)])
            part = states[bounds[number] : bounds[number + 1]]
            assert torch.equal(part, alone), (lengths, number)


def test_common_counts_add_little_and_are_few() -> None:
    counts = [common_count(rows) for rows in range(1, 4097)]
    assert all(count >= rows for rows, count in enumerate(counts, start=1))
    assert all(count - rows < max(16, rows / 8) for rows, count in enumerate(counts, start=1))
    assert len(set(counts)) < 100
    assert common_count(16) == 16
    assert common_count(1024) == 1024
