"""Means over rows from a sample: what happens where the sample tells little about its controls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pydoc_data.topics import topics

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.analysis.layer_capture import capture_layers, head_view
from engine.diagnostics import Effort, HeadView, Quantity, Reading, measure
from engine.diagnostics.sampling import choose_rows, mean_of, row_weights, within
from engine.execution.documents import prepare_document
from engine.model.embedding_model import EmbeddingModel
from engine.steps import finish
from engine.types import EmbedOptions
from tests.engine.dense import make_view

pytestmark = pytest.mark.usefixtures("one_thread")

Floats = NDArray[np.float64]
NAMES = (
    "attention_fisher",
    "effective_rank",
    "mutual_information",
    "similarity",
    "weight_fisher",
)
RANGES = {
    ("attention_fisher", ""): (0, 1),
    ("effective_rank", ""): (1, np.inf),
    ("effective_rank", "frobenius_norm"): (1, np.inf),
    ("mutual_information", "log_squared_norm"): (0, np.inf),
    ("similarity", "cosines"): (0, 1),
}


def first_layer(model: EmbeddingModel, text: str) -> HeadView:
    prepared = prepare_document(text, model, EmbedOptions(), None)
    return head_view(model, finish(next(capture_layers(model, prepared))))


def test_sharp_heads_of_a_real_text(published_model: EmbeddingModel) -> None:
    """Rows of the first layer's heads differ in sharpness by many orders of magnitude."""
    view = first_layer(published_model, topics["typesseq"][:1_300]).only(range(4))
    exact = parts(measure(view, NAMES, Effort(mode="exact", max_dense_tokens=view.num_tokens)))
    apart: dict[tuple[str, str], list[Floats]] = defaultdict(list)
    for seed in range(4):
        sampled = parts(measure(view, NAMES, Effort(mode="sampled", seed=seed)))
        for key, found in sampled.items():
            expected, (low, high) = exact[key], RANGES.get(key, (-np.inf, np.inf))
            assert ((found.values >= low) & (found.values <= high)).all(), key
            error = 0.0 if found.error is None else found.error
            assert expected.error is None, key
            gap = np.abs(found.values - expected.values)
            apart[key].append((gap / (error + 1e-6 * np.abs(expected.values) + 1e-9)).flatten())
    for key, gaps in apart.items():
        errors = np.concatenate(gaps)
        # At 99 of 100, three or more of 32 numbers are outside once in three hundred times.
        assert np.sum(errors > 3) <= max(2, 0.03 * errors.size), (key, errors.max())


def parts(readings: Mapping[str, Reading]) -> dict[tuple[str, str], Reading | Quantity]:
    """By instrument and quantity, "" for the instrument's value."""
    found: dict[tuple[str, str], Reading | Quantity] = {}
    for name, reading in readings.items():
        found[name, ""] = reading
        found |= {(name, part): quantity for part, quantity in reading.beside.items()}
    return found


def test_a_control_that_hardly_varies_in_the_sample_does_not_carry_the_mean_away() -> None:
    generator = torch.Generator().manual_seed(0)
    per_row = torch.rand(1, 96, generator=generator, dtype=torch.float64)
    control = 1e-9 * torch.rand(1, 96, generator=generator, dtype=torch.float64)
    found = mean_of(per_row, 3_000, [(control, torch.tensor([1e-3]).double())])
    plain = mean_of(per_row, 3_000)
    torch.testing.assert_close(found.values, plain.values)
    torch.testing.assert_close(found.error, plain.error)


def test_a_control_that_explains_all_leaves_no_error() -> None:
    known = torch.rand(2, 500, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    per_row, sample = 3 * known + 1, slice(0, 60)
    found = mean_of(per_row[:, sample], 500, [(known[:, sample], known.mean(1))])
    torch.testing.assert_close(found.values, per_row.mean(1))
    assert found.error is not None
    assert (found.error < 1e-9).all()


@pytest.mark.parametrize(("count", "num_controls"), [(2, 1), (2, 2), (3, 2)])
def test_a_fit_that_meets_every_row_is_not_taken(count: int, num_controls: int) -> None:
    """It would leave no error, whatever the rows that were not read are."""
    generator = torch.Generator().manual_seed(2)
    per_row = torch.rand(4, count, generator=generator, dtype=torch.float64)
    known = torch.rand(num_controls, 4, 500, generator=generator, dtype=torch.float64)
    controls = [(control[:, :count], control.mean(1)) for control in known]
    found, plain = mean_of(per_row, 500, controls), mean_of(per_row, 500)
    torch.testing.assert_close(found.values, plain.values)
    assert found.error is not None
    assert plain.error is not None
    assert (found.error >= plain.error).all()
    assert (plain.error > 0.1).all()


def test_an_estimate_moved_into_its_range_states_how_far() -> None:
    found = within(mean_of(torch.full((1, 4), 2.0), 100), (0.0, 1.0))
    assert found.values.tolist() == [1.0]
    assert found.error is not None
    assert found.error.tolist() == [1.0]


@pytest.mark.parametrize(("count", "length"), [(96, 97), (96, 160), (48, 1_000), (8, 9)])
def test_a_sample_has_the_first_and_the_last_row_and_one_of_each_stretch(
    count: int, length: int
) -> None:
    view = make_view("softmax", length)
    seen = torch.zeros(length)
    for seed in range(40):
        rows = choose_rows(view, count, seed)
        assert len(rows) == count
        assert rows[[0, -1]].tolist() == [0, length - 1]
        assert (rows.diff() > 0).all()
        assert rows.diff().max() <= 2 * -(-length // (count - 2))
        seen[rows] += 1
    quarters = torch.stack([part.mean() for part in seen[1:-1].tensor_split(4)])
    assert (quarters / seen[1:-1].mean() - 1).abs().max() < 0.15
    weights = row_weights(count, length)
    assert float(weights.sum()) == pytest.approx(1)


def test_a_special_token_counts_as_the_one_row_that_it_is() -> None:
    """A row unlike all others, as that of the first token: a sample of 20 rows of 400 is exact but
    for what it says of the others."""
    view = make_view("softmax", 400)
    per_row = torch.randn(1, 400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    per_row[0, 0] = 1e6
    for seed in range(20):
        found = mean_of(per_row[:, choose_rows(view, 20, seed)], 400)
        assert found.error is not None
        assert found.error < 0.5
        assert abs(found.values - per_row.mean(1)) < 3 * found.error


def test_rows_that_controls_know_of_widen_the_error() -> None:
    """All rows that were drawn are alike; the control says that others are not."""
    control = torch.full((1, 100), 0.0, dtype=torch.float64)
    control[0, 90:] = 0.4
    noise = 1e-6 * torch.rand(1, 20, generator=torch.Generator().manual_seed(0)).double()
    sample = noise.clone()
    found = mean_of(sample, 100, [(noise, control.mean(1))], limits=(0.0, 0.5), ends=(0, 0))
    assert found.error is not None
    assert abs(found.values - 0.04) <= 3 * found.error
