"""What `lln adapt` reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.engine import Engine
from engine.evaluation.corpora import load_corpus
from service.cli.__main__ import main
from service.cli.adapt import read_training_data


def test_a_corpus_outside_training_may_be_trained_on() -> None:
    (documents,) = read_training_data(["traditions"]).values()
    assert documents == load_corpus("traditions").documents


def test_settings_of_an_adapted_model_are_changed_without_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLN_ENGINE__DEVICE", "cpu")
    own, evened = tmp_path / "own", tmp_path / "evened"
    change = ["adapt", "default", "--further"]
    assert main([*change, "--chunk-context", "late", "--out", str(own)]) == 0
    assert capsys.readouterr().out == f"{own}: default with --chunk-context late\n"
    both = ["--chunk-context", "opening", "--rise", "0"]
    assert main([*change, *both, "--out", str(evened), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(evened)}
    default, late, opening = (Engine.load(str(name)) for name in ("default", own, evened))
    contexts = [one.info.chunk_context for one in (default, late, opening)]
    assert contexts == ["balanced", "late", "opening"]
    slopes = [one.model.pooling_slope_of(100_000) for one in (default, late, opening)]
    assert slopes[0] == slopes[1] > slopes[2] == 0
    refused_anew = ["adapt", str(own), "--train", "nothing", "--out", str(tmp_path / "anew")]
    assert main(refused_anew) == 1
    assert f"{own} is already adapted; its LLN will be calibrated anew" in capsys.readouterr().err
    refused = [*change, "--chunk-context", "late", "--positions", "tile", "--out", "none"]
    assert main(refused) == 1
    assert "--positions cannot be combined with --further" in capsys.readouterr().err
