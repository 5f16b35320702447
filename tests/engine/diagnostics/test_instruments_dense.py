"""Every instrument of heads against the same quantity of a dense float64 matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.diagnostics import HEAD_INSTRUMENTS, Effort, HeadView, Reading, measure
from engine.diagnostics.rows import DECILES
from engine.diagnostics.temperature import HIGHEST
from engine.types import Attention
from tests.engine.dense import (
    DENSE,
    HEAD_SIZE,
    KINDS,
    Floats,
    check_finite,
    dense,
    kind_shares,
    make_view,
    read,
    scores,
    seen,
)

RTOL = 1e-6


pytestmark = pytest.mark.usefixtures("one_thread")


def entropies(view: HeadView) -> dict[str, Tensor]:
    matrix = dense(view)
    entropy = -torch.xlogy(matrix, matrix).sum(-1).mean(-1)
    return {"": entropy, "bits": entropy / math.log(2)}


def spectral_gaps(view: HeadView) -> dict[str, Tensor]:
    matrix = dense(view)
    if view.num_tokens == 1:
        return {"": torch.ones(view.num_heads)}
    moduli = torch.linalg.eigvals(matrix).abs().sort(descending=True).values
    return {"": 1 - moduli[:, 1]}


def temperatures(view: HeadView) -> dict[str, Tensor]:
    within = _variance_of_scores(view)
    return {"": 1 / within.sqrt().clamp_min(1 / HIGHEST)} | _paper_temperatures(view)


def _variance_of_scores(view: HeadView) -> Tensor:
    keys = seen(view)
    counts = keys.sum(-1)
    centred = scores(view) - (scores(view) * keys).sum(-1, keepdim=True) / counts[:, None]
    return (((centred * keys) ** 2).sum(-1) / counts).mean(-1)


def _paper_temperatures(view: HeadView) -> dict[str, Tensor]:
    """Eq. 5 word for word, and of elements less their means."""
    variances = []
    for head in range(view.num_heads):
        q, k = (x[:, head].double().flatten().numpy() for x in (view.q, view.k))
        variances.append([_eq_5(q, k), _eq_5(q - q.mean(), k - k.mean())])
    printed, centred = 1 / torch.tensor(variances).clamp_min(HIGHEST**-2).sqrt().mT
    return {"paper": printed, "paper_centred": centred}


def _eq_5(q: Floats, k: Floats) -> float:
    cross = np.mean(q**2 * k**2) - np.mean(q**2) * np.mean(k**2)
    cross -= (np.mean(q * k) - q.mean() * k.mean()) ** 2
    return float(q.var() * k.var() + cross)


def stationary_perplexities(view: HeadView) -> dict[str, Tensor]:
    """By repeating the chain until nothing moves."""
    matrix = dense(view)
    rows = torch.full((view.num_heads, 1, view.num_tokens), 1 / view.num_tokens).double()
    power = matrix
    for _ in range(60):
        power = power @ power
        power = power / power.sum(-1, keepdim=True)
    ends = (rows @ power).squeeze(1)
    order = ends.sort(descending=True)
    return {"": torch.special.entr(ends).sum(-1).exp(), "top_mass": order.values[:, :8]}


def log_normalities(view: HeadView) -> dict[str, Tensor]:
    keys = seen(view)
    found: dict[str, list[float]] = {
        name: [] for name in ("", "within_rows", "skewness", "kurtosis", "decile_gap")
    }
    for matrix in dense(view):
        rows = [row[used].log().numpy() for row, used in zip(matrix, keys, strict=True)]
        spread = [row.std() if np.ptp(row) > 1e-12 else 0.0 for row in rows]
        standard = [(r - r.mean()) / s if s else None for r, s in zip(rows, spread, strict=True)]
        means = np.array([row.mean() for row in rows])
        within = np.mean(np.square(spread))
        found[""].append(within + means.var())
        found["within_rows"].append(within)
        found["skewness"].append(_mean([0.0 if z is None else (z**3).mean() for z in standard]))
        found["kurtosis"].append(_mean([0.0 if z is None else (z**4).mean() - 3 for z in standard]))
        found["decile_gap"].append(_mean([0.0 if z is None else _gap(z) for z in standard]))
    return {name: torch.tensor(values) for name, values in found.items()}


def _gap(standard: Floats) -> float:
    below = [np.mean(standard < decile) for decile in DECILES]
    return float(np.max(np.abs(np.array(below) - np.arange(1, 10) / 10)))


def _mean(values: list[float]) -> float:
    return float(np.mean(values))


def ranks(view: HeadView) -> dict[str, Tensor]:
    values = torch.linalg.svdvals(dense(view))
    squares = values**2
    leading = torch.zeros(view.num_heads, 8, dtype=torch.float64)
    leading[:, : values.shape[1]] = values[:, :8]
    return {
        "": squares.sum(1) ** 2 / (squares**2).sum(1),
        "frobenius_norm": squares.sum(1).sqrt(),
        "stable_rank": squares.sum(1) / squares[:, 0],
        "singular_values": leading,
    }


def informations(view: HeadView) -> dict[str, Tensor]:
    matrix = dense(view)
    mean = matrix.mean(1)
    entropy = -torch.xlogy(matrix, matrix).sum(-1).mean(-1)
    return {
        "": (torch.special.entr(mean).sum(-1) - entropy).clamp_min(0),
        "log_squared_norm": (matrix**2).sum((1, 2)).log().clamp_min(0),
    }


def energies(view: HeadView) -> dict[str, Tensor]:
    norms = view.q.double().square().sum((0, 2)) * view.k.double().square().sum((0, 2))
    bound = norms / HEAD_SIZE
    energy = (scores(view) ** 2).sum((1, 2))
    return {"": energy, "bound": bound, "share_of_bound": energy / bound}


def scales(view: HeadView) -> dict[str, Tensor]:
    return {"": (dense(view) * _distances(view)).sum(-1).mean(-1)}


def _distances(view: HeadView) -> Tensor:
    position = torch.arange(view.num_tokens).double()
    return (position[:, None] - position).abs()


def similarities(view: HeadView) -> dict[str, Tensor]:
    flat = dense(view).flatten(1)
    flat = flat / flat.norm(dim=1, keepdim=True)
    cosines = flat @ flat.T
    others = (cosines.sum(1) - 1) / (view.num_heads - 1)
    return {"": others, "cosines": cosines}


def additions(view: HeadView) -> dict[str, Tensor]:
    assert view.v is not None
    assert view.x is not None
    assert view.out is not None
    added = dense(view) @ view.v.double().transpose(0, 1) @ view.out.double()
    norm = added.square().sum(-1).mean(-1).sqrt()
    return {"": norm, "relative": norm / view.x.double().square().sum(-1).mean().sqrt()}


def attention_fishers(view: HeadView) -> dict[str, Tensor]:
    rows = dense(view)
    fisher = torch.diag_embed(rows) - rows.unsqueeze(-1) * rows.unsqueeze(-2)
    trace = fisher.diagonal(dim1=-2, dim2=-1).sum(-1).mean(-1)
    if view.num_tokens > DENSE.max_dense_tokens:
        return {"": trace}
    values = torch.linalg.eigvalsh(fisher).flip(-1)[..., :2].mean(1)
    leading = torch.zeros(view.num_heads, 2, dtype=torch.float64)
    leading[:, : values.shape[1]] = values
    return {"": trace, "eigenvalues": leading.clamp_min(0)}


def weight_fishers(view: HeadView) -> dict[str, Tensor]:
    """Row by row, as sums of covariances."""
    assert view.x is not None
    x, k, q = view.x.double(), view.k.double().transpose(0, 1), view.q.double().transpose(0, 1)
    matrix = dense(view)
    cov_k = _covariances(matrix, k)
    cov_x = _covariances(matrix, x.expand(view.num_heads, -1, -1))
    gram_x, gram_q = x.T @ x, q.mT @ q
    scale = view.num_tokens * HEAD_SIZE
    return {
        "": gram_x.trace() * _traces(cov_k) / scale,
        "trace_k": _traces(cov_x) * _traces(gram_q) / scale,
        "rank_q_keys": _participation(cov_k),
        "rank_k_states": _participation(cov_x),
        "rank_k_queries": _participation(gram_q),
    }


def _covariances(matrix: Tensor, points: Tensor) -> Tensor:
    means = matrix @ points  # [H, N, W]
    centred = points.unsqueeze(1) - means.unsqueeze(2)  # [H, N, N, W]
    return torch.einsum("hij,hija,hijb->hab", matrix, centred, centred)


def _traces(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=1, dim2=2).sum(1)


def _participation(matrices: Tensor) -> Tensor:
    squares = matrices.square().sum((1, 2))
    return torch.where(squares > 1e-20, _traces(matrices) ** 2 / squares, 0.0)


def divergences(view: HeadView) -> dict[str, Tensor]:
    assert view.v is not None
    own, softmax = dense(view), scores(view).softmax(-1)
    kl = (torch.xlogy(own, own) - own * scores(view).log_softmax(-1)).sum(-1)
    v = view.v.double().transpose(0, 1)
    apart = ((own - softmax) @ v).norm(dim=(1, 2)) / (softmax @ v).norm(dim=(1, 2))
    return {
        "": kl.mean(1),
        "quantiles": torch.quantile(kl, torch.tensor([0.1, 0.5, 0.9]).double(), dim=1).T,
        "total_variation": (own - softmax).abs().sum(-1).mean(1) / 2,
        "output_error": apart,
    }


def head_kinds(view: HeadView) -> dict[str, Tensor]:
    shares = kind_shares(view)
    return {"": torch.stack(list(shares.values())).amax(0)} | shares


Truth: TypeAlias = Callable[[HeadView], dict[str, Tensor]]

TRUTH: Mapping[str, Truth] = {
    "temperature": temperatures,
    "entropy": entropies,
    "spectral_gap": spectral_gaps,
    "stationary": stationary_perplexities,
    "lognormality": log_normalities,
    "effective_rank": ranks,
    "mutual_information": informations,
    "energy": energies,
    "head_scale": scales,
    "similarity": similarities,
    "pruning": additions,
    "attention_fisher": attention_fishers,
    "weight_fisher": weight_fishers,
    "softmax_divergence": divergences,
    "head_kind": head_kinds,
}


def test_every_instrument_has_a_truth() -> None:
    assert set(TRUTH) == set(HEAD_INSTRUMENTS)


def check(view: HeadView, name: str, reading: Reading, truth: Truth | None = None) -> None:
    """Values and what stands beside them: exact to RTOL, or within four stated errors."""
    check_finite(reading)
    for part, expected in (truth or TRUTH[name])(view).items():
        found = reading if part == "" else reading.beside[part]
        gap = np.abs(found.values - expected.double().numpy())
        allowed = RTOL * np.abs(expected.double().numpy()) + 1e-9
        if found.error is not None:
            allowed = allowed + 4 * found.error
        assert (gap <= allowed).all(), (name, part, found.values, expected, found.error)


SHAPES = [
    pytest.param(1, (0, 0), id="1"),
    pytest.param(2, (1, 1), id="2-sinks"),
    pytest.param(48, (0, 0), id="one-block"),
    pytest.param(63, (5, 2), id="63-sinks"),
    pytest.param(97, (50, 3), id="97-sinks-beyond-a-block"),
    pytest.param(149, (1, 1), id="149-sinks"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("length", "sinks"), SHAPES)
def test_short_texts_are_read_exactly(kind: Attention, length: int, sinks: tuple[int, int]) -> None:
    view = make_view(kind, length, sinks=sinks, maps=length == 63)
    for name, reading in measure(view, effort=DENSE).items():
        if name == "stationary" and kind == "block_diagonal" and sinks == (0, 0) and length > 48:
            continue  # has a test of its own
        assert reading.error is None, name
        check(view, name, reading)


@pytest.mark.parametrize("kind", KINDS)
def test_long_texts(kind: Attention) -> None:
    """Defaults, where spectra are iterated."""
    view = make_view(kind, 300, sinks=(1, 1))
    for name in TRUTH:
        if name not in ("attention_fisher", "weight_fisher"):
            check(view, name, read(view, name))


def test_mode_exact_finds_the_gap_of_heads_that_look_back_in_long_texts() -> None:
    """Their eigenvalues lie around the circle, in every block, where iteration hardly finds them;
    matrices of long texts are not kept."""
    view = make_view("lln_diag", 230, sinks=(1, 1))
    keys = torch.nn.functional.normalize(view.k, dim=-1) * 9
    view = HeadView(**{**vars(view), "q": keys.roll(1, dims=0), "k": keys})
    found = read(view, "spectral_gap", Effort(mode="exact", max_matrix_tokens=1))
    assert found.error is None
    for head, matrix in enumerate(dense(view).numpy()):
        values = np.linalg.eigvals(matrix)
        second = values[np.abs(values).argsort()[-2]]
        assert found.values[head] == pytest.approx(1 - abs(second))
        phase = found.beside["second_phase"].values[head]
        assert phase == pytest.approx(abs(np.angle(second)))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_in_float32_are_exact_enough(kind: Attention) -> None:
    """Where rows are sampled, weights are held in float32; what is called exact stays so."""
    view = make_view(kind, 310, sinks=(1, 1), dtype=torch.float32)
    effort = Effort(mode="sampled", max_float64_tokens=1)
    for name in TRUTH:
        if name not in ("attention_fisher", "weight_fisher"):
            check(view, name, read(view, name, effort))
    trace = read(view, "weight_fisher", effort)
    if trace.error is None:
        np.testing.assert_allclose(trace.values, weight_fishers(view)[""].numpy(), rtol=RTOL)


def stationary_by_elimination(view: HeadView) -> dict[str, Tensor]:
    """x P = x and sum x = 1, as one system of equations."""
    matrix = dense(view)
    even = 1 / view.num_tokens
    system = matrix.mT - torch.eye(view.num_tokens, dtype=torch.float64) + even
    wanted = torch.full((view.num_heads, view.num_tokens), even, dtype=torch.float64)
    ends = torch.linalg.solve(system, wanted)
    leading = ends.sort(descending=True).values[:, :8]
    return {"": torch.special.entr(ends.clamp_min(0)).sum(-1).exp(), "top_mass": leading}


TRUTH_AT_LENGTH = {
    name: TRUTH[name]
    for name in ("entropy", "temperature", "mutual_information", "energy", "head_scale", "pruning")
} | {"similarity": similarities, "stationary": stationary_by_elimination}


@pytest.mark.parametrize("kind", KINDS)
def test_texts_beyond_those_read_exactly(kind: Attention) -> None:
    """By default, and where the matrix's spectra would take a minute each, without those."""
    view = make_view(kind, 1_152, sinks=(1, 1), block_size=512, dtype=torch.float32)
    readings = measure(view, list(TRUTH_AT_LENGTH))
    for name, truth in TRUTH_AT_LENGTH.items():
        check(view, name, readings[name], truth)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_spectra_of_2048_tokens(kind: Attention) -> None:
    view = make_view(kind, 2_048, sinks=(1, 1), block_size=512, dtype=torch.float32)
    for name in ("spectral_gap", "effective_rank", "lognormality"):
        check(view, name, read(view, name))


@pytest.mark.parametrize("kind", KINDS)
def test_gate_per_token(kind: Attention) -> None:
    view = make_view(kind, 130, sinks=(1, 1))
    gates = torch.rand(130, view.num_heads, generator=torch.Generator().manual_seed(1))
    gated = HeadView(**{**vars(view), "mix": gates})
    for name, reading in measure(gated, effort=DENSE).items():
        check(gated, name, reading)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [2, 30, 200])
def test_identical_tokens(kind: Attention, length: int) -> None:
    one = make_view(kind, 1)
    alike = {name: getattr(one, name).repeat(length, 1, 1) for name in ("q", "k", "v")}
    assert one.x is not None
    assert one.token_kinds is not None
    alike |= {"x": one.x.repeat(length, 1), "token_kinds": one.token_kinds.repeat(length)}
    view = HeadView(**{**vars(one), **alike, "block_size": 512})
    readings = measure(view)
    for reading in readings.values():
        check_finite(reading)
    np.testing.assert_allclose(readings["entropy"].values, math.log(length), atol=1e-6)
    np.testing.assert_allclose(readings["effective_rank"].values, 1, rtol=1e-6)
    np.testing.assert_allclose(readings["mutual_information"].values, 0, atol=1e-6)
    np.testing.assert_allclose(readings["lognormality"].beside["skewness"].values, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_one_hot_attention(kind: Attention) -> None:
    """Every token attends to itself alone: no entropy, and a chain that never moves."""
    length = 16
    tokens = 100 * torch.eye(length, HEAD_SIZE).unsqueeze(1).expand(-1, 3, -1).double()
    view = HeadView(**{**vars(make_view(kind, length)), "q": tokens, "k": tokens})
    readings = measure(view)
    for reading in readings.values():
        check_finite(reading)
    assert readings["entropy"].values == pytest.approx(0.0, abs=1e-12)
    assert readings["spectral_gap"].values == pytest.approx(0.0, abs=1e-9)
    assert readings["effective_rank"].values == pytest.approx(length)
    assert readings["attention_fisher"].values == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_beyond_the_range_of_exp(kind: Attention, dtype: torch.dtype) -> None:
    view = make_view(kind, 130, scale=300.0, sinks=(1, 1), dtype=dtype)
    assert scores(view).abs().max() > 1e4
    readings = measure(view)
    for reading in readings.values():
        check_finite(reading)
    for name in ("entropy", "temperature", "head_scale"):
        check(view, name, readings[name])


def test_exactness_on_request_reads_every_row() -> None:
    view = make_view("softmax", 200)
    assert read(view, "entropy", Effort(max_exact_tokens=64)).error is not None
    assert read(view, "entropy", Effort(mode="exact", max_exact_tokens=64)).error is None
    assert read(view, "entropy", Effort(mode="sampled")).error is not None
