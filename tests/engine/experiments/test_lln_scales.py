"""LLN with alpha and beta matched in training, and float16 with its loss scale."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Generator, nn

from engine.evaluation.corpora import SOURCES
from engine.experiments.attention import find_attention
from engine.experiments.contests.half import HalfContest, LossScale, Scaling
from engine.experiments.contests.masked import MaskedContest
from engine.experiments.contests.moments import MomentContest
from engine.experiments.contests.tokens import TokenContest
from engine.experiments.lln_scales import FIXED, MATCHED, scales_of
from engine.experiments.tasks.mail_bytes import MailBytes
from engine.experiments.tasks.masked_text import TextSource
from engine.experiments.tasks.pixels import Patches
from engine.experiments.training import TrainingBudget
from engine.experiments.trials import Trial
from kernels.attention import PackedSequences, paper_moment_matching
from tests.engine.experiments.small_pictures import write_pictures
from tests.engine.experiments.toy_corpus import TOY
from tests.engine.experiments.toy_mail import write_mail

BUDGET = TrainingBudget(steps=4, batch=3, warm_up=1, weight_decay=0.01, clip=1.0, examples=3)


@pytest.mark.parametrize(
    ("matched", "fixed"), [("lln_matched", "lln"), ("lln_diag_matched", "lln_diag")]
)
def test_matched_attention_is_lln_at_the_papers_scales(matched: str, fixed: str) -> None:
    q, k, v = torch.randn(3, 40, 2, 16, generator=Generator().manual_seed(0)).unbind()
    attention, packed = (
        find_attention(matched, block_size=16),
        PackedSequences.of([0, 40], q.device),
    )
    alpha, beta = paper_moment_matching(q, k)
    assert scales_of(attention, q, k) == {"alpha": float(alpha), "beta": float(beta)}
    other = replace(find_attention(fixed, block_size=16), alpha=float(alpha), beta=float(beta))  # type: ignore[type-var]
    torch.testing.assert_close(attention(q, k, v, packed), other(q, k, v, packed))
    torch.testing.assert_close(attention.matrix(q, k), other.matrix(q, k))


@pytest.mark.parametrize("name", FIXED)
def test_fixed_attention_has_the_scale_of_its_name(name: str) -> None:
    attention = find_attention(name, block_size=16)
    assert (attention.alpha, attention.beta) == (float(name[-1]), float(name[-1]))  # type: ignore[attr-defined]
    assert scales_of(attention, torch.ones(1, 1, 16), torch.ones(1, 1, 16)) == {}


@pytest.mark.parametrize("name", MATCHED)
def test_alpha_and_beta_are_told_on_the_way(name: str, tmp_path: Path) -> None:
    write_pictures(tmp_path)
    base = TokenContest(
        task=Patches(side=7, folder=str(tmp_path)),
        layers=2,
        width=32,
        heads=2,
        block_size=16,
        budget=BUDGET,
        rates=(1e-2,),
        tuning_seeds=1,
    )
    contest = MomentContest(base=base, watched=3)
    found = contest.measure(Trial(method=name, rate=1e-2, seed=0, part="test"))
    told = {key: value for key, value in found.items() if "layer" in key}
    assert set(told) == {
        f"{scale}_of_layer_{layer}_at_{step}"
        for scale in ("alpha", "beta")
        for layer in (1, 2)
        for step in (0, 2, 4)
    }
    assert all(value > 0 for value in told.values())
    assert len(set(told.values())) == len(told)


def test_the_loss_scale_halves_at_an_overflow_and_doubles_after_a_run() -> None:
    model = nn.Linear(1, 1, bias=False)
    scale = LossScale(model, Scaling(first=4.0, double_after=2))
    (weight,) = model.parameters()
    for value, is_good in ((1.0, True), (math.inf, False), (3.0, True), (3.0, True), (1.0, True)):
        model.zero_grad()
        assert scale.backward((value * weight).sum()) == is_good
        if is_good:
            assert weight.grad is not None
            assert float(weight.grad) == value
    assert scale.history == [4, 4, 2, 2, 4]
    assert scale.skipped == 1


def test_a_model_trained_in_float16_tells_its_loss_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "toy", TOY)
    masked = MaskedContest(
        source=TextSource(corpora=("toy",), vocabulary=280, length=32),
        layers=1,
        width=32,
        heads=2,
        block_size=16,
        budget=BUDGET,
        watched=2,
        watched_tokens=16,
        rates=(1e-2,),
        tuning_seeds=1,
    )
    trial = Trial(method="lln", rate=1e-2, seed=0, part="test")
    calm = HalfContest(masked=masked, scaling=Scaling(first=2.0, double_after=9)).measure(trial)
    assert (calm["skipped_steps"], calm["log2_inverse_scale"]) == (0, -1)
    assert calm["loss"] == pytest.approx(masked.measure(trial)["loss"], rel=0.01)
    wild = HalfContest(masked=masked, scaling=Scaling(first=2.0**40, double_after=9)).measure(trial)
    assert (wild["skipped_steps"], wild["log2_inverse_scale"]) == (4, -37)
    assert "float16" in str(HalfContest(masked=masked, scaling=Scaling(2.0, 9)).settings())


def test_mail_is_read_byte_by_byte_and_filled_up(tmp_path: Path) -> None:
    write_mail(tmp_path)
    task = MailBytes(length=150, folder=str(tmp_path))
    tokens, targets, _ = task.draw(6, Generator().manual_seed(0), "test")
    assert tokens.shape == (6, 150)
    for row, label in zip(tokens.tolist(), targets.flatten().tolist(), strict=True):
        text = bytes(one for one in row if one < 256).decode()
        assert text.startswith(("meeting", "money")[label])
        assert row[len(text) :] == [256] * (150 - len(text))
    short = MailBytes(length=4, folder=str(tmp_path)).draw(2, Generator().manual_seed(0), "test")
    assert short.tokens.max() < 256
