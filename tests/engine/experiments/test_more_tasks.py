"""ListOps, matching, pictures and Pathfinder: the answers are what they say, the parts apart."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch
from torch import Generator

from engine.errors import InvalidInput
from engine.experiments.tasks import images, text_sources
from engine.experiments.tasks.listops import OPERATORS, ListOps, evaluate
from engine.experiments.tasks.matching import Matching
from engine.experiments.tasks.pathfinder import Pathfinder
from engine.experiments.tasks.pixels import Patches, Pixels
from engine.experiments.tasks.task import Part
from tests.engine.experiments.small_pictures import write_pictures

MAX, MIN, MEDIAN, SUM = OPERATORS
CLOSE = 10


def generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ([MAX, 2, 9, MIN, 4, 7, CLOSE, 0, CLOSE], 9),
        ([MIN, MAX, 3, 5, CLOSE, 8, CLOSE], 5),
        ([MEDIAN, 1, 9, 4, 7, CLOSE], 4),
        ([SUM, 9, 9, SUM, 5, 6, CLOSE, CLOSE], 9),
    ],
)
def test_the_value_of_an_expression(expression: list[int], value: int) -> None:
    assert evaluate(expression) == value


def test_listops_are_whole_expressions_of_the_length_asked_for() -> None:
    task = ListOps(length=40, max_depth=4, max_arguments=4)
    tokens, targets, _ = task.draw(20, generator())
    for row, answer in zip(tokens.tolist(), targets.flatten().tolist(), strict=True):
        expression = [token for token in row if token < task.vocabulary - 1]
        assert len(expression) >= 10
        assert row[: len(expression)] == expression  # filler stands at the end alone
        assert sum(token in OPERATORS for token in expression) == expression.count(CLOSE)
        assert evaluate(expression) == answer


def test_matching_pairs_are_of_one_document_and_no_part_shares_a_document() -> None:
    task = Matching(length=64, corpora=("speeches",))
    seen: dict[Part, set[bytes]] = {}
    for part in ("training", "validation", "test"):
        documents = [one.body.encode() for one in text_sources.parts_of("speeches")[part]]
        tokens, targets, _ = task.draw(6, generator(), part)
        for row, matches in zip(tokens, targets.flatten().tolist(), strict=True):
            first, second = (bytes(half.tolist()) for half in row.split(32))
            holds_both = any(first in one and second in one for one in documents)
            assert holds_both == bool(matches)
        seen[part] = set(documents)
    assert not seen["training"] & seen["test"]
    assert not seen["validation"] & (seen["test"] | seen["training"])


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    write_pictures(tmp_path)
    return tmp_path


def test_pictures_are_read_in_three_parts(pictures: Path) -> None:
    found = images.fashion_mnist(pictures)
    counts: list[int] = [len(found[part].labels) for part in ("training", "validation", "test")]
    assert counts == [27, 3, 7]


def test_pixels_are_means_of_squares_row_by_row(pictures: Path) -> None:
    task = Pixels(shrink=7, levels=256, folder=str(pictures))
    tokens, targets, _ = task.draw(3, generator(), "test")
    drawn = images.drawn(pictures, 3, generator(), "test")
    assert tokens[1, 5] == int(drawn.pixels[1, 7:14, 7:14].mean())
    assert targets.flatten().equal(drawn.labels)


def test_patches_are_squares_row_by_row(pictures: Path) -> None:
    task = Patches(side=7, folder=str(pictures))
    patches = task.draw(3, generator(), "test").tokens
    assert patches.shape == (3, task.length, task.patch)
    pixels = images.drawn(pictures, 3, generator(), "test").pixels
    torch.testing.assert_close(patches[2, 6].view(7, 7) * 255, pixels[2, 7:14, 14:21])


def test_pictures_that_are_not_installed(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="needs the package dataset-fashion-mnist") as caught:
        Pixels(shrink=7, levels=4, folder=str(tmp_path)).sources()
    assert caught.value.code == "missing_package"


def test_an_unknown_corpus() -> None:
    with pytest.raises(InvalidInput, match="unknown corpus 'novels'"):
        Matching(length=64, corpora=("novels",)).sources()


PATHFINDER = Pathfinder(side=16, path=9, distractors=1, marks_apart=(4, 7), pictures=12)


def test_pathfinder_marks_two_ends_at_a_distance_that_tells_nothing() -> None:
    random = Random(0)
    answers = []
    for _ in range(6):
        tokens, answer, away = PATHFINDER.make(random)
        first, second = (tokens == 2).nonzero().flatten().tolist()
        assert second - first == away
        rows, columns = zip(divmod(first, 16), divmod(second, 16), strict=True)
        apart = ((rows[0] - rows[1]) ** 2 + (columns[0] - columns[1]) ** 2) ** 0.5
        assert 4 <= round(apart) <= 7
        answers.append(answer)
    assert set(answers) == {0, 1}


def test_pathfinder_draws_from_pictures_of_its_own_part() -> None:
    training, test = (
        set(map(tuple, PATHFINDER.draw(30, generator(), part).tokens.tolist()))
        for part in ("training", "test")
    )
    assert len(training) <= 12
    assert not training & test
