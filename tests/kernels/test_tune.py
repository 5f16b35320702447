"""The table of tile sizes, and how `python -m kernels.tune` fills it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from kernels import tune
from kernels.attention.gpu import tiles

errors = pytest.importorskip("triton.runtime.errors")

ROOT = Path(__file__).parents[2]
BF16 = torch.bfloat16


def test_the_shipped_table_names_tiles_that_exist() -> None:
    for family, lines in tiles.table().items():
        assert family in tiles.FAMILIES.values()
        for numbers in lines.values():
            assert all(isinstance(number, int) for number in numbers.values())


def test_a_measured_choice_replaces_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    default, small = (
        tiles.output_tile(64, BF16, weight=False, block_size=size) for size in (128, 64)
    )
    line = tiles.purpose("output", 64, BF16, weight=False, block_size=128)
    table = {"hopper": {line: {"queries": 32, "num_stages": 3}}}
    monkeypatch.setattr(tiles, "table", lambda: table)

    def choose(block_size: int, family: str | None) -> tiles.OutputTile:
        return tiles.output_tile(64, BF16, weight=False, block_size=block_size, family=family)

    assert choose(128, "hopper") == replace(default, queries=32, num_stages=3)
    assert choose(64, "hopper") == small
    assert choose(128, "ada") == default
    assert choose(128, None) == default


def test_the_fastest_candidate_wins_and_what_does_not_fit_is_passed_over() -> None:
    chosen: dict[str, dict[str, int]] = {}
    default = asdict(tiles.state_tile(64, BF16, weight=False))
    candidates = tuple(default | {"tokens": tokens} for tokens in (32, 64, 128))
    choice = tune.Choice("state", default, candidates, lambda: None)

    def seconds(_: object) -> float:
        tokens = chosen.get("state", {}).get("tokens")
        if tokens == 128:
            raise errors.OutOfResources(294_912, 232_448, "shared memory")
        return {None: 1.0, 32: 0.7, 64: 0.99}[tokens]

    tune.decide(choice, chosen, seconds)
    assert chosen["state"]["tokens"] == 32
    tune.decide(choice, chosen, lambda _: 1.0)
    assert chosen == {}


def test_every_choice_is_about_a_tile_of_the_table() -> None:
    every = list(tune.choices(torch.device("cpu"), [BF16]))
    assert len({choice.purpose for choice in every}) == len(every)
    for choice in every:
        assert all(candidate.keys() == choice.default.keys() for candidate in choice.candidates)


def test_other_families_lines_stay(tmp_path: Path) -> None:
    path = tmp_path / "tiles.json"
    tune.write(path, "ada", {"state": {"tokens": 32}}, {"device": "L4"})
    tune.write(path, "hopper", {"state": {"tokens": 64}}, {"device": "H200"})
    content = json.loads(path.read_text())
    assert content["tiles"] == {
        "ada": {"state": {"tokens": 32}},
        "hopper": {"state": {"tokens": 64}},
    }
    assert content["measured_on"]["ada"] == {"device": "L4"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to tune for")
def test_without_a_gpu_it_says_so() -> None:
    command = [sys.executable, "-m", "kernels.tune"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode != 0
    assert "there is none here" in finished.stderr
