"""Every experiment that trains gives the same bytes when it is run again; the mlm's own figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Generator

from engine.diagnostics import HeadView, measure
from engine.errors import InsufficientMemory, InvalidInput
from engine.evaluation.corpora import SOURCES, CorpusSource
from engine.experiments.attention import find_attention
from engine.experiments.concentration import concentration
from engine.experiments.contest import Contest, ContestPlan, run_contest
from engine.experiments.contests.half import HalfContest, Scaling
from engine.experiments.contests.masked import MaskedContest
from engine.experiments.contests.moments import MomentContest
from engine.experiments.tasks import text_sources
from engine.experiments.tasks.listops import ListOps
from engine.experiments.tasks.mail_bytes import MailBytes
from engine.experiments.tasks.masked_text import MASK, SEPARATOR, TextSource
from engine.experiments.tasks.matching import Matching
from engine.experiments.tasks.pathfinder import Pathfinder
from engine.experiments.tasks.pixels import Patches, Pixels
from engine.experiments.tasks.task import UNASKED, Majority
from tests.engine.experiments.small_pictures import write_pictures
from tests.engine.experiments.toy_contests import BUDGET, assert_same_bytes_twice, toy_contest
from tests.engine.experiments.toy_corpus import TOY
from tests.engine.experiments.toy_mail import write_mail

TEXT = TextSource(corpora=("toy",), vocabulary=280, length=32)


MASKED = MaskedContest(
    source=TEXT,
    layers=2,
    width=32,
    heads=2,
    block_size=16,
    budget=BUDGET,
    watched=2,
    watched_tokens=24,
    rates=(1e-3,),
    tuning_seeds=1,
)
CONTESTS: dict[str, Callable[[str], Contest]] = {
    "majority": lambda folder: toy_contest(Majority(length=64, symbols=3, favoured=0.2)),
    "listops": lambda folder: toy_contest(ListOps(length=64, max_depth=4, max_arguments=4)),
    "matching": lambda folder: toy_contest(Matching(length=64, corpora=("toy",))),
    "pixels": lambda folder: toy_contest(Pixels(shrink=4, levels=8, folder=folder)),
    "vision": lambda folder: toy_contest(Patches(side=7, folder=folder)),
    "pathfinder": lambda folder: toy_contest(
        Pathfinder(side=16, path=9, distractors=1, marks_apart=(4, 7), pictures=4)
    ),
    "text": lambda folder: toy_contest(MailBytes(length=48, folder=folder)),
    "moments": lambda folder: MomentContest(
        base=toy_contest(Patches(side=7, folder=folder)), watched=3
    ),
    "mlm": lambda folder: MASKED,
    "float16": lambda folder: HalfContest(masked=MASKED, scaling=Scaling(1024.0, double_after=1)),
}


@pytest.fixture(autouse=True)
def corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "toy", TOY)


@pytest.mark.parametrize("name", CONTESTS)
def test_an_experiment_gives_the_same_bytes_twice(name: str, tmp_path: Path) -> None:
    write_pictures(tmp_path)
    write_mail(tmp_path)
    contest = CONTESTS[name](str(tmp_path))
    assert_same_bytes_twice(contest, tmp_path, (contest.methods[0], contest.methods[-1]))


def test_masks_ask_for_a_share_and_show_little_of_it() -> None:
    tokens = TEXT.pieces("training")[:20_000]
    masked = TEXT.mask(tokens, Generator().manual_seed(0))
    asked = masked.targets != UNASKED
    assert float(asked.double().mean()) == pytest.approx(0.15, abs=0.02)
    assert not (asked & (tokens == SEPARATOR)).any()
    assert masked.inputs[~asked].equal(tokens[~asked])
    assert masked.targets[asked].equal(tokens[asked])
    hidden = (masked.inputs[asked] == MASK).double().mean()
    assert float(hidden) == pytest.approx(0.8, abs=0.05)


def test_a_watched_trial_tells_loss_and_concentration_by_tokens_and_layer() -> None:
    trial = next(
        ContestPlan(contest=MASKED, methods=MASKED.methods, seeds=2, threads=1).test_trials(
            dict.fromkeys(MASKED.methods, 1e-3)
        )
    )
    figures = MASKED.measure(trial)
    assert figures["loss_at_0"] == pytest.approx(math.log(280), rel=0.2)
    assert figures["loss_at_128"] == figures["loss"] == -figures["score"]
    assert {f"entropy_of_layer_{layer}_at_128" for layer in (1, 2)} <= set(figures)


@pytest.mark.parametrize("name", ["softmax", "lln", "lln_diag", "block_diagonal"])
def test_concentration_is_what_the_instruments_read(name: str) -> None:
    q, k = torch.randn(2, 24, 2, 8, generator=Generator().manual_seed(0)).unbind()
    found = concentration(find_attention(name, block_size=8), q, k)
    view = HeadView(
        q=q,
        k=k,
        attention=name,  # type: ignore[arg-type]
        alpha=torch.full((2,), 2.0),
        beta=torch.full((2,), 2.0),
        mix=torch.full((2,), 0.5),
        block_size=8,
    )
    for figure in ("entropy", "spectral_gap"):
        read = measure(view, [figure])[figure].values
        assert found[figure] == pytest.approx(sum(read) / len(read), abs=1e-6)


def test_too_little_text_and_memory_are_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = replace(MASKED, source=replace(TEXT, length=10**6))
    plan = ContestPlan(contest=long, methods=MASKED.methods, seeds=2, threads=1)
    with pytest.raises(InvalidInput, match="a window takes 1000001"):
        run_contest(plan, tmp_path / "out", {}, lambda *told: None)
    monkeypatch.setattr("engine.experiments.training_memory.free_bytes", lambda device: 1000)
    with pytest.raises(InsufficientMemory, match="mlm needs about"):
        run_contest(replace(plan, contest=MASKED), tmp_path / "out", {}, lambda *told: None)
    assert not (tmp_path / "out").exists()


def test_a_missing_package_is_told_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, "gone", CorpusSource("gone (Debian)", lambda: iter(())))
    with pytest.raises(InvalidInput, match=r"needs the package gone \(Debian\)"):
        text_sources.digests(["gone"])
