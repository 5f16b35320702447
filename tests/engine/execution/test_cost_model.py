"""The price of texts: which layers are timed, and what stands for the others."""

from __future__ import annotations

from collections.abc import Iterator
from time import sleep

from engine.execution.cost_model import _layers_seconds, price_of, sizes_of
from engine.model.embedding_model import EmbeddingModel
from engine.model.tiled_pass import can_tile

NUM_LAYERS = 6


class Steps:
    """Layers that take these times."""

    def __init__(self, *seconds: float) -> None:
        self.num_run = 0
        self._seconds = seconds

    def __iter__(self) -> Iterator[object]:
        for seconds in self._seconds:
            self.num_run += 1
            sleep(seconds)
            yield None


def test_the_fastest_of_three_alike_layers_stands_for_all(default_model: EmbeddingModel) -> None:
    steps = Steps(0.06, 0.02, 0.04, *[9.0] * (NUM_LAYERS - 3))
    found = _layers_seconds(default_model.encoder, iter(steps))
    assert steps.num_run == 3
    assert 0.02 * NUM_LAYERS <= found < 0.04 * NUM_LAYERS


def test_layers_of_each_kind_are_timed(default_model: EmbeddingModel) -> None:
    """Here the last layer is the only one of its kind, so all are run on the way to it."""
    mixed = default_model.with_attention([*["lln_diag"] * (NUM_LAYERS - 1), "softmax"])
    steps = Steps(*[0.01] * (NUM_LAYERS - 1), 0.2)
    found = _layers_seconds(mixed.encoder, iter(steps))
    assert steps.num_run == NUM_LAYERS
    assert found >= 0.01 * (NUM_LAYERS - 1) + 0.2


def test_bytes_are_counted_once_for_a_price(default_model: EmbeddingModel) -> None:
    encoder = default_model.encoder
    assert can_tile(encoder)
    sizes = sizes_of(encoder)
    assert price_of(encoder).sizes == sizes
    assert sizes is sizes_of(encoder)
    assert min(sizes.visit_bytes, sizes.lean_visit_bytes, sizes.sample_bytes) > 0


def test_a_softmax_text_is_not_read_in_tiles(published_model: EmbeddingModel) -> None:
    price = price_of(published_model.encoder)
    assert price.tile is None
    assert price.sizes.visit_bytes == 0
    assert price.pair_s > 0
