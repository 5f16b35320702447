"""Every instrument against the same quantity of a dense float64 matrix, written plainly here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.diagnostics import INSTRUMENTS, Effort, HeadView, Reading, find_instruments, measure
from engine.diagnostics.rows import HeadRows
from engine.diagnostics.temperature import HIGHEST
from engine.errors import InvalidInput
from engine.types import Attention

KINDS: tuple[Attention, ...] = get_args(Attention)
NUM_HEADS = 3
HEAD_SIZE = 16

Floats = NDArray[np.float64]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """LAPACK on several threads crawls where other work takes the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_view(
    kind: Attention,
    length: int,
    *,
    scale: float = 1.0,
    sinks: tuple[int, int] = (0, 0),
    block_size: int = 48,
    seed: int = 0,
    maps: bool = False,
    dtype: torch.dtype = torch.float64,
) -> HeadView:
    """Random heads, each with parameters of its own."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k = (scale * random(length, NUM_HEADS, HEAD_SIZE) + 0.3 for _ in range(2))
    head_map = (0.3 * random(NUM_HEADS, HEAD_SIZE, HEAD_SIZE), random(NUM_HEADS, HEAD_SIZE))
    return HeadView(
        q=q.to(dtype),
        k=k.to(dtype),
        attention=kind,
        alpha=torch.tensor([1.0, 1.7, 2.2]),
        beta=torch.tensor([1.0, 0.6, 1.4]),
        mix=torch.tensor([0.5, 0.15, 0.8]),
        block_size=block_size,
        num_sinks=sinks,
        q_map=head_map if maps else None,
        k_map=(None, head_map[1]) if maps else None,
    )


def dense(view: HeadView) -> Tensor:
    """The attention matrix by its definition: [H, N, N]."""
    softmax = scores(view).softmax(-1)
    if view.attention == "softmax":
        return softmax
    diag = scores(view).masked_fill(~mask(view), -math.inf).softmax(-1)
    if view.attention == "block_diagonal":
        return diag
    lln = dense_lln(view)
    if view.attention == "lln":
        return lln
    assert view.mix is not None
    mix = view.mix.double().expand(view.num_tokens, view.num_heads).t().unsqueeze(-1)
    return mix * lln + (1 - mix) * diag


def scores(view: HeadView) -> Tensor:
    return torch.einsum("ihd,jhd->hij", view.q.double(), view.k.double()) / math.sqrt(HEAD_SIZE)


def mask(view: HeadView) -> Tensor:
    position = torch.arange(view.num_tokens)
    first, last = view.num_sinks
    sink = (position < first) | (position >= view.num_tokens - last)
    block = position // view.block_size
    return (block[:, None] == block) | sink


def dense_lln(view: HeadView) -> Tensor:
    """log sum_c exp(alpha q_ic + beta k_jc), normalised along the row."""
    queries = exponents(view.q, view.q_map, view.alpha)
    keys = exponents(view.k, view.k_map, view.beta)
    rows = [torch.logsumexp(row[None, :] + keys, dim=-1) for row in queries]  # [N, H] each
    return torch.stack(rows).permute(2, 0, 1).softmax(-1)


def exponents(
    x: Tensor, head_map: tuple[Tensor | None, Tensor] | None, scale: Tensor | None
) -> Tensor:
    assert scale is not None
    x = x.double()
    if head_map is not None:
        weight, bias = head_map
        x = x if weight is None else torch.einsum("thc,hcd->thd", x, weight)
        x = x + bias
    return scale.double()[:, None] * x


def dense_entropy(view: HeadView) -> Floats:
    matrix = dense(view)
    entropy: Floats = -torch.xlogy(matrix, matrix).sum(-1).mean(-1).numpy()
    return entropy


def dense_gap(view: HeadView) -> Floats:
    """Call it for few long texts: LAPACK takes a while."""
    moduli = torch.linalg.eigvals(dense(view)).abs().sort(descending=True).values
    gap: Floats = (1 - moduli[:, 1]).numpy()
    return gap


def dense_temperature(view: HeadView) -> Floats:
    seen = mask(view) if view.attention == "block_diagonal" else torch.ones_like(mask(view))
    counts = seen.sum(-1)
    centred = scores(view) - (scores(view) * seen).sum(-1, keepdim=True) / counts[:, None]
    variance = ((centred * seen) ** 2).sum(-1) / counts
    tau: Floats = (1 / variance.mean(-1).sqrt()).numpy()
    return tau


def read(view: HeadView, name: str, effort: Effort | None = None) -> Reading:
    reading = measure(view, [name], effort)[name]
    check_finite(reading)
    return reading


def check_finite(reading: Reading) -> None:
    assert reading.values.dtype == np.float64
    assert np.isfinite(reading.values).all()
    assert reading.error is None or np.isfinite(reading.error).all()


SHAPES = [
    pytest.param(1, (0, 0), id="1"),
    pytest.param(2, (1, 1), id="2-sinks"),
    pytest.param(48, (0, 0), id="one-block"),
    pytest.param(63, (5, 2), id="63-sinks"),
    pytest.param(145, (50, 3), id="145-sinks-beyond-a-block"),
    pytest.param(251, (1, 1), id="251-sinks"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("length", "sinks"), SHAPES)
def test_short_texts_are_read_exactly(kind: Attention, length: int, sinks: tuple[int, int]) -> None:
    view = make_view(kind, length, sinks=sinks, maps=length == 63)
    entropy = read(view, "entropy")
    np.testing.assert_allclose(entropy.values, dense_entropy(view), rtol=1e-9, atol=1e-12)
    gap = read(view, "spectral_gap")
    expected = np.ones(NUM_HEADS) if length == 1 else dense_gap(view)
    np.testing.assert_allclose(gap.values, expected, rtol=1e-6, atol=1e-9)
    temperature = read(view, "temperature")
    expected = np.full(NUM_HEADS, HIGHEST) if length == 1 else dense_temperature(view)
    np.testing.assert_allclose(temperature.values, expected, rtol=1e-9)
    assert entropy.error is gap.error is temperature.error is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("length", "sinks"), [(500, (1, 1)), (699, (0, 0))])
def test_long_texts(kind: Attention, length: int, sinks: tuple[int, int]) -> None:
    view = make_view(kind, length, sinks=sinks)
    np.testing.assert_allclose(read(view, "entropy").values, dense_entropy(view), rtol=1e-9)
    np.testing.assert_allclose(read(view, "temperature").values, dense_temperature(view), rtol=1e-9)
    check_gap(view.only([1]), read(view.only([1]), "spectral_gap"), Effort())


def check_gap(view: HeadView, reading: Reading, effort: Effort) -> None:
    """Exact where it says so, within its stated error elsewhere, and that within the tolerance."""
    expected = dense_gap(view)
    if reading.error is None:
        np.testing.assert_allclose(reading.values, expected, rtol=1e-6, atol=1e-9)
        return
    assert (abs(reading.values - expected) <= reading.error + 1e-12).all()
    assert (reading.error <= effort.tolerance).all()


@pytest.mark.parametrize("kind", ["softmax", "lln_diag", "block_diagonal"])
def test_iterated_gap_reaches_a_fine_tolerance(kind: Attention) -> None:
    view = make_view(kind, 333, sinks=(1, 2), maps=True)
    effort = Effort(tolerance=1e-9)
    reading = read(view, "spectral_gap", effort)
    assert reading.error is not None
    check_gap(view, reading, effort)


@pytest.mark.parametrize("length", [2, 3, 17, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_iteration_spans_the_whole_space_of_a_short_text(kind: Attention, length: int) -> None:
    view = make_view(kind, length, block_size=16, sinks=(1, 0))
    effort = Effort(max_dense_tokens=1)
    reading = read(view, "spectral_gap", effort)
    assert (abs(reading.values - dense_gap(view)) <= 1e-5 + _errors(reading)).all()


def _errors(reading: Reading) -> Floats:
    return np.zeros(NUM_HEADS) if reading.error is None else reading.error


def test_iteration_states_a_large_error_where_it_fails() -> None:
    """A head that shifts: eigenvalues all around a circle."""
    length = 400
    angle = torch.arange(length, dtype=torch.float64) * (2 * math.pi / length)
    waves = [f(angle * n) for n in range(1, 9) for f in (torch.cos, torch.sin)]
    k = 4 * torch.stack(waves, dim=-1).unsqueeze(1).expand(-1, NUM_HEADS, -1)
    view = replace(make_view("softmax", length), q=k.roll(1, 0), k=k)
    reading = read(view, "spectral_gap", Effort(max_basis=64))
    assert reading.error is not None
    assert (abs(reading.values - dense_gap(view)) <= reading.error).all()


@pytest.mark.parametrize("kind", KINDS)
def test_gate_per_token(kind: Attention) -> None:
    view = make_view(kind, 130, sinks=(1, 1))
    gates = torch.rand(130, NUM_HEADS, generator=torch.Generator().manual_seed(1))
    gated = replace(view, mix=gates)
    np.testing.assert_allclose(read(gated, "entropy").values, dense_entropy(gated), rtol=1e-9)
    np.testing.assert_allclose(read(gated, "spectral_gap").values, dense_gap(gated), atol=1e-9)


@pytest.mark.parametrize("length", [2, 30, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_identical_tokens_attend_evenly(kind: Attention, length: int) -> None:
    one = make_view(kind, 1)
    view = replace(one, q=one.q.repeat(length, 1, 1), k=one.k.repeat(length, 1, 1), block_size=512)
    assert read(view, "entropy").values == pytest.approx(math.log(length), abs=1e-12)
    gap = read(view, "spectral_gap")
    assert (1 - gap.values <= 1e-9 + _errors(gap)).all()
    assert read(view, "temperature").values == pytest.approx(HIGHEST)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [90, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_beyond_the_range_of_exp(kind: Attention, length: int, dtype: torch.dtype) -> None:
    view = make_view(kind, length, scale=300.0, sinks=(1, 1), dtype=dtype)
    assert scores(view).abs().max() > 1e4
    np.testing.assert_allclose(
        read(view, "entropy").values, dense_entropy(view), rtol=1e-6, atol=1e-12
    )
    np.testing.assert_allclose(read(view, "temperature").values, dense_temperature(view), rtol=1e-6)
    reading = read(view, "spectral_gap")
    assert ((reading.values >= 0) & (reading.values <= 1)).all()


def test_one_hot_attention() -> None:
    """Every token attends to itself alone: no entropy, and a chain that never moves."""
    length = 16
    tokens = 100 * torch.eye(length, HEAD_SIZE).unsqueeze(1).expand(-1, NUM_HEADS, -1)
    for kind in KINDS:
        view = replace(make_view(kind, length), q=tokens, k=tokens)
        assert read(view, "entropy").values == pytest.approx(0.0, abs=1e-12)
        assert read(view, "spectral_gap").values == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("kind", ["softmax", "lln", "lln_diag"])
def test_sampled_entropy_states_its_error(kind: Attention) -> None:
    view = make_view(kind, 700, scale=1.5)
    expected = dense_entropy(view)
    effort = Effort(max_exact_tokens=300)
    reading = read(view, "entropy", effort)
    assert reading.error is not None
    assert "128 rows" in reading.method
    assert (reading.error > 0).all()
    assert (abs(reading.values - expected) < 4 * reading.error).all()
    np.testing.assert_array_equal(reading.values, read(view, "entropy", effort).values)


def test_standard_error_has_the_right_size() -> None:
    view = make_view("softmax", 600, scale=1.5)
    expected = dense_entropy(view)
    readings = [
        read(view, "entropy", Effort(max_exact_tokens=200, seed=seed)) for seed in range(40)
    ]
    standardised = [(r.values - expected) / _errors(r) for r in readings]
    assert 0.7 < np.std(np.concatenate(standardised)) < 1.4


def test_block_diagonal_entropy_is_exact_at_any_length() -> None:
    view = make_view("block_diagonal", 700)
    assert read(view, "entropy", Effort(max_exact_tokens=10)).error is None


def test_two_isolated_blocks_never_mix() -> None:
    """The structural zero is what the dense spectrum says, and sinks undo it."""
    view = make_view("block_diagonal", 100)
    assert read(view, "spectral_gap").values == pytest.approx(0.0)
    assert dense_gap(view) == pytest.approx(0.0, abs=1e-12)
    assert (read(replace(view, num_sinks=(1, 0)), "spectral_gap").values > 0.01).all()


@pytest.mark.parametrize("length", [240, 400])
def test_half_lln_leaves_at_most_half_a_gap(length: int) -> None:
    """With N > block_size x D, 1 - mix is an eigenvalue: the gap is at most the share of LLN."""
    view = replace(
        make_view("lln_diag", length, block_size=16 if length > 300 else 14),
        mix=torch.full((NUM_HEADS,), 0.5),
    )
    reading = read(view, "spectral_gap")
    assert length > view.block_size * HEAD_SIZE
    assert (reading.values <= 0.5 + _errors(reading) + 1e-9).all()


def test_entropy_is_bracketed_by_the_channels() -> None:
    """sum_c pi_c H(kappa_c) <= H(P_i), and at most H(pi_i) more."""
    view = make_view("lln", 200)
    factors = HeadRows(view).factors
    assert factors is not None
    channels = torch.special.entr(factors.kappa).sum(-1)
    below = torch.einsum("hic,hc->hi", factors.pi, channels).mean(1).numpy()
    above = below + torch.special.entr(factors.pi).sum(-1).mean(1).numpy()
    values = read(view, "entropy").values
    assert ((below <= values) & (values <= above)).all()


def test_temperature_ignores_what_softmax_ignores() -> None:
    view = make_view("softmax", 77)
    shifted = replace(view, k=view.k + 5.0)
    np.testing.assert_allclose(
        read(shifted, "temperature").values, read(view, "temperature").values, rtol=1e-9
    )


def test_entropy_rises_with_temperature() -> None:
    views = [make_view("softmax", 100, scale=scale) for scale in (2.0, 1.0, 0.5)]
    for cold, warm in pairwise(views):
        assert (read(cold, "temperature").values < read(warm, "temperature").values).all()
        assert (read(cold, "entropy").values < read(warm, "entropy").values).all()


def test_some_heads_alone_read_the_same() -> None:
    view = make_view("lln_diag", 300, sinks=(1, 1), maps=True)
    some = view.only([2, 0])
    for name in INSTRUMENTS:
        np.testing.assert_allclose(
            read(some, name).values, read(view, name).values[[2, 0]], rtol=1e-5
        )


def test_measure_reads_all_by_default() -> None:
    readings = measure(make_view("softmax", 5))
    assert list(readings) == ["temperature", "entropy", "spectral_gap"]
    for name, reading in readings.items():
        assert reading.unit == INSTRUMENTS[name].unit
        assert reading.method


def test_unknown_instrument_is_named() -> None:
    with pytest.raises(InvalidInput, match="'entrophy'") as caught:
        find_instruments(["entropy", "entrophy"])
    assert caught.value.code == "unknown_instrument"


def test_bad_views_are_refused() -> None:
    view = make_view("softmax", 5)
    with pytest.raises(InvalidInput, match="alike and not empty"):
        replace(view, k=view.k[:4])
    with pytest.raises(InvalidInput, match="alike and not empty"):
        replace(view, q=view.q[:0], k=view.k[:0])
    with pytest.raises(InvalidInput, match="not finite"):
        replace(view, q=view.q * math.nan)
    with pytest.raises(InvalidInput, match="needs mix"):
        replace(view, attention="lln_diag", mix=None)
    with pytest.raises(InvalidInput, match="block_size"):
        replace(view, block_size=0)
    with pytest.raises(InvalidInput, match="tolerance"):
        Effort(tolerance=0.0)
