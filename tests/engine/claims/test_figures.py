"""The redrawn figures: their numbers and their pictures."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from engine.claims.claim import HeadSample
from engine.claims.figures.concentration import CONCENTRATION, concentration
from engine.claims.figures.draw import FIGURES, draw_figures
from engine.claims.figures.figure import Figure, RandomHeads, Series
from engine.claims.figures.log_normal_sum import log_normal_sum
from engine.claims.figures.variances import VARIANCES_SAMPLE, variances
from engine.errors import InvalidInput

COMMITTED = Path(__file__).resolve().parents[3] / "docs" / "figures"
MAX_PICTURE_BYTES = 150_000


@pytest.fixture(scope="module")
def heads() -> tuple[HeadSample, ...]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, 2, 100, 32, dtype=torch.float64, generator=generator)
    return tuple(HeadSample(layer=i, head=i, q=q, k=k) for i, (q, k) in enumerate(rows))


@pytest.fixture(scope="module")
def of_variances() -> Figure:
    return variances(())


@pytest.fixture(scope="module")
def of_sums() -> Figure:
    return log_normal_sum(())


def series(figure: Figure, panel: int) -> dict[str, Series]:
    return {one.label: one for one in figure.panels[panel].series}


def largest_error(found: Series, wanted: Series) -> float:
    return max(abs(a / b - 1) for a, b in zip(found.y, wanted.y, strict=True))


@pytest.mark.long
def test_corrected_variance_is_nearer_than_the_papers(of_variances: Figure) -> None:
    curves = series(of_variances, 0)
    measured = curves["measured"]
    corrected = largest_error(curves["corrected: s² + s⁴ / 2D"], measured)
    assert corrected < 0.05 < largest_error(curves["paper: s²"], measured)


def test_corrected_denominator_is_nearer_than_the_papers(of_sums: Figure) -> None:
    curves = series(of_sums, 1)
    for dim in (32, 64, 128):
        measured = curves[f"measured, D = {dim}"]
        assert largest_error(curves[f"corrected, D = {dim}"], measured) < 0.15
        assert largest_error(curves["paper, N = 512"], measured) > 0.25


def test_concentration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Softmax rises with temperature, ReLU does not, and only one matching follows."""
    small = RandomHeads(tokens=96, head_size=64, draws=1)
    monkeypatch.setattr("engine.claims.figures.concentration.CONCENTRATION", small)
    curves = series(concentration(()), 0)
    softmax = curves["softmax"].y
    assert all(low < high for low, high in pairwise(softmax))
    assert max(curves["ReLU"].y) - min(curves["ReLU"].y) < 0.2
    assert largest_error(curves["LLN, matched by entropy"], curves["softmax"]) < 1e-3
    assert largest_error(curves["LLN, moment matching of the paper"], curves["softmax"]) > 0.2


def test_histograms_are_densities(heads: tuple[HeadSample, ...]) -> None:
    for panel in FIGURES["histograms"](heads).panels:
        for one in panel.series:
            width = one.x[1] - one.x[0]
            assert sum(one.y) * width == pytest.approx(1, abs=0.02), one.label


def test_a_picture_and_its_numbers(tmp_path: Path, heads: tuple[HeadSample, ...]) -> None:
    [path] = draw_figures(tmp_path / "new", heads, only=["histograms"])
    assert path.read_bytes().startswith(b"\x89PNG")
    numbers = json.loads(path.with_suffix(".json").read_text())
    assert [len(panel["series"]) for panel in numbers["panels"]] == [5, 4, 4]


def test_committed_numbers_are_current(of_variances: Figure, of_sums: Figure) -> None:
    for found in (of_variances, of_sums):
        committed = json.loads((COMMITTED / f"{found.name}.json").read_text())
        for panel, kept in zip(found.panels, committed["panels"], strict=True):
            for one, of_one in zip(panel.series, kept["series"], strict=True):
                assert of_one["label"] == one.label
                assert of_one["y"] == pytest.approx(one.y, rel=1e-3)


def test_committed_sizes_are_current() -> None:
    samples = {"figure2-concentration": CONCENTRATION, "figure4-variances": VARIANCES_SAMPLE}
    for name, sample in samples.items():
        committed = json.loads((COMMITTED / f"{name}.json").read_text())
        assert committed["settings"] == asdict(sample)


def test_every_figure_is_committed_and_small() -> None:
    pictures = sorted(COMMITTED.glob("figure*.png"))
    assert len(pictures) == len(FIGURES)
    for picture in pictures:
        assert picture.stat().st_size < MAX_PICTURE_BYTES, picture.name
        numbers = json.loads(picture.with_suffix(".json").read_text())
        values = [y for panel in numbers["panels"] for one in panel["series"] for y in one["y"]]
        assert all(map(math.isfinite, values))


def test_without_matplotlib(
    tmp_path: Path, heads: tuple[HeadSample, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(InvalidInput, match="the extra 'figures'") as caught:
        next(draw_figures(tmp_path, heads, only=["histograms"]))
    assert caught.value.code == "missing_extra"


def test_unknown_figure(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="unknown figure 'nine'"):
        next(draw_figures(tmp_path, (), only=["nine"]))


def test_histograms_need_heads() -> None:
    with pytest.raises(InvalidInput, match="heads of a document"):
        FIGURES["histograms"](())
