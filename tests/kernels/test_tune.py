"""The table of tile sizes, and how `python -m kernels.tune` fills it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from kernels.attention.gpu import tiles
from kernels.tune.__main__ import main, write
from kernels.tune.choices import Choice, Numbers, choices
from kernels.tune.decide import decide

errors = pytest.importorskip("triton.runtime.errors")

ROOT = Path(__file__).parents[2]
BF16 = torch.bfloat16


def test_the_shipped_table_names_tiles_that_exist() -> None:
    for family, lines in tiles.table().items():
        assert family in tiles.FAMILIES.values()
        for numbers in lines.values():
            assert all(number is None or number > 0 for number in numbers.values())


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


def make_choice(answer: Callable[[], torch.Tensor]) -> Choice:
    return Choice("state", tuple({"tokens": tokens} for tokens in (32, 64, 128)), answer)


def test_the_fastest_candidate_wins_and_what_does_not_fit_is_passed_over() -> None:
    chosen: dict[str, Numbers] = {}
    choice = make_choice(lambda: torch.ones(3))

    def seconds(_: object) -> float:
        tokens = chosen.get("state", {}).get("tokens")
        if tokens == 128:
            raise errors.OutOfResources(294_912, 232_448, "shared memory")
        return {None: 1.0, 32: 0.7, 64: 0.99}[tokens]

    times = decide(choice, choice.candidates, chosen, seconds)
    assert chosen["state"]["tokens"] == 32
    assert [timed.seconds for timed in times] == [1.0, 0.7, 0.99, None]
    assert times[-1].note == "OutOfResources"
    decide(choice, choice.candidates, chosen, lambda _: 1.0)
    assert chosen == {}


def test_a_candidate_that_answers_otherwise_is_not_chosen() -> None:
    chosen: dict[str, Numbers] = {}

    def answer() -> torch.Tensor:
        tokens = chosen.get("state", {}).get("tokens")
        return torch.full((3,), {32: float("nan"), 64: 1.1}.get(tokens or 0, 1.0))

    def seconds(_: object) -> float:
        return {None: 1.0, 128: 0.9}[chosen.get("state", {}).get("tokens")]

    choice = make_choice(answer)
    times = decide(choice, choice.candidates, chosen, seconds)
    assert chosen == {"state": {"tokens": 128}}
    assert [timed.note for timed in times] == ["", "differs by nan", "differs by 0.1", ""]


def test_every_choice_is_about_a_tile_of_the_table() -> None:
    every = list(choices(torch.device("cpu"), BF16, tokens=256))
    assert len({choice.purpose for choice in every}) == len(every)
    tiles_of = {
        "state": tiles.StateTile,
        "output": tiles.OutputTile,
        "state gradient": tiles.StateGradientTile,
        "rows gradient": tiles.RowsGradientTile,
        "softmax": tiles.SoftmaxTile,
    }
    for choice in every:
        names = {field.name for field in fields(tiles_of[choice.purpose.partition(",")[0]])}
        assert len(choice.candidates) > 1
        assert all(candidate.keys() <= names for candidate in choice.candidates)


@pytest.mark.slow
def test_what_does_not_fit_or_was_wrong_on_a_gpu_is_not_usable() -> None:
    """In a process of its own, whose kernels are compiled and not interpreted."""
    state, gradient = (
        "state, D 64, bfloat16",
        "rows gradient, D 32, bfloat16, blocks of 512, mapped",
    )
    wrong: Numbers = {"rows": 64, "keys": 64, "num_warps": 4}
    candidates: list[tuple[str, Numbers]] = [
        (state, {"tokens": 128, "num_stages": 3}),
        (state, {"tokens": 128, "num_stages": 12}),
        (gradient, {"rows": 32, "keys": 32, "num_warps": 2}),
        (gradient, wrong),
    ]
    program = (
        "import torch\nfrom kernels.tune.builds import is_usable\n"
        f"for line, numbers in {candidates}:\n"
        "    print(is_usable(line, torch.bfloat16, numbers))"
    )
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    finished = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert finished.stdout.split() == ["True", "False", "True", "False"], finished.stderr


def test_other_families_lines_stay(tmp_path: Path) -> None:
    path = tmp_path / "tiles.json"
    write(path, "ada", {"state": {"tokens": 32}}, {"device": "L4"})
    write(path, "hopper", {"state": {"tokens": 64}}, {"device": "H200"})
    content = json.loads(path.read_text())
    assert content["tiles"] == {
        "ada": {"state": {"tokens": 32}},
        "hopper": {"state": {"tokens": 64}},
    }
    assert content["measured_on"]["ada"] == {"device": "L4"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to tune for")
def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["tune"])
    with pytest.raises(SystemExit, match="there is none here"):
        main()
