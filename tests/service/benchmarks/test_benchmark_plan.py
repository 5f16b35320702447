"""Plans, comparisons, CSV and plots of benchmarks, without a server."""

from __future__ import annotations

import asyncio
import csv
import io
from typing import Any

import pytest

from engine.benchmarks.encoder import ATTENTIONS
from engine.errors import InvalidInput
from service.benchmarks.job import BenchmarkJob
from service.benchmarks.plan import checked_plan
from service.benchmarks.report import compare, plot_png, rows_as_csv
from service.benchmarks.suites import SUITES, Row
from service.errors import InvalidField
from tests.model_info import MODEL


@pytest.mark.parametrize("suite", list(SUITES))
def test_every_suite_has_a_plan_of_its_own(suite: str) -> None:
    plan = checked_plan(MODEL, suite=suite)
    assert plan.lengths
    assert max(plan.lengths) <= MODEL.max_tokens
    assert bool(plan.attentions) == ("attentions" in SUITES[suite].fields)
    assert SUITES[suite].num_rows(plan) > 0


def test_values_given_twice_are_measured_once() -> None:
    plan = checked_plan(MODEL, lengths=[16, 32, 16], attentions=["softmax", "softmax"])
    assert (plan.lengths, plan.attentions) == ((16, 32), ("softmax",))


@pytest.mark.parametrize(
    ("fields", "param", "limit"),
    [
        ({"suite": "decoder"}, "suite", "attention, encoder, serving, quality"),
        ({"lengths": []}, "lengths", 12),
        ({"lengths": [1] * 13}, "lengths", 12),
        ({"lengths": [16, 0]}, "lengths[1]", 1),
        ({"lengths": [4097]}, "lengths[0]", 4096),
        ({"attentions": ["magic"]}, "attentions[0]", ", ".join(ATTENTIONS)),
        ({"suite": "attention", "dtypes": ["int8"]}, "dtypes[0]", "float32, bfloat16, float16"),
        ({"dtypes": ["float32"]}, "dtypes", "lengths, attentions, repeats, training"),
        ({"suite": "serving", "repeats": 3}, "repeats", "lengths, seconds"),
        ({"repeats": 21}, "repeats", 20),
        ({"repeats": 10**400}, "repeats", 20),
        ({"suite": "quality", "lengths": [2]}, "lengths[0]", 3),
        ({"suite": "serving", "seconds": float("nan")}, "seconds", 0.5),
        ({"suite": "serving", "seconds": 61.0}, "seconds", 60.0),
    ],
)
def test_bad_plans(fields: dict[str, Any], param: str, limit: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        checked_plan(MODEL, **fields)
    assert (caught.value.param, caught.value.limit) == (param, limit)


@pytest.mark.parametrize(
    ("fields", "fits_the_schema"),
    [
        ({"attentions": ["magic"]}, False),
        ({"lengths": [200_000]}, False),
        ({"suite": "quality", "attentions": ["elu"]}, True),
        ({"lengths": [4097]}, True),
        ({"suite": "quality", "lengths": [2]}, True),
    ],
)
def test_values_valid_by_the_schema_are_not_field_errors(
    fields: dict[str, Any], fits_the_schema: bool
) -> None:
    with pytest.raises(InvalidInput) as caught:
        checked_plan(MODEL, **fields)
    assert isinstance(caught.value, InvalidField) is not fits_the_schema


def job(rows: list[Row], suite: str = "encoder", **machine: str) -> BenchmarkJob:
    plan = checked_plan(MODEL, suite=suite)
    made = BenchmarkJob(plan=plan, num_rows=len(rows), machine=machine)
    made.rows.extend(rows)
    return made


def row(tokens: int, seconds: float, attention: str = "softmax") -> Row:
    return {
        "attention": attention,
        "work": "forward",
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds if seconds else 0.0,
        "repeats": 1,
    }


def test_compare_rates_each_measure() -> None:
    a = job([row(16, 1.0), row(32, 2.0), row(64, 0.0)], torch="2.11", device="cpu")
    b = job([row(16, 0.5), row(32, 2.0), row(64, 1.0), row(128, 1.0)], torch="2.13", device="cpu")
    found = compare(a, b)
    changes = {line.key["tokens"]: line.measures for line in found.rows}
    assert changes[16]["seconds"].ratio == 0.5
    assert changes[16]["seconds"].better == "b"
    assert changes[16]["tokens_per_s"].better == "b"
    assert changes[32]["seconds"].better == "neither"
    assert changes[64]["seconds"].ratio is None
    assert found.only_in_a == ()
    assert found.only_in_b == ({"attention": "softmax", "work": "forward", "tokens": 128},)
    assert found.machine == {"torch": ("2.11", "2.13")}
    assert found.plan == {}


def test_compare_lists_different_plans() -> None:
    """Rows of the serving suite do not contain the lengths of the requests."""
    row: Row = dict.fromkeys(["share", *(one.name for one in SUITES["serving"].measures)], 1.0)
    short, long = (
        BenchmarkJob(plan=checked_plan(MODEL, **fields), num_rows=1, machine={}, rows=[row])
        for fields in (
            {"suite": "serving", "lengths": [16]},
            {"suite": "serving", "lengths": [2048], "seconds": 9.0},
        )
    )
    assert compare(short, long).plan == {"lengths": ((16,), (2048,)), "seconds": (5.0, 9.0)}


def test_compare_refuses_two_suites() -> None:
    with pytest.raises(InvalidInput, match="only runs of the same suite"):
        compare(job([]), job([], suite="quality"))


def test_csv_has_all_figures_and_their_provenance() -> None:
    made = job([row(16, 1.0), row(32, 0.1)], device='a "fast", cheap one')
    lines = list(csv.DictReader(io.StringIO(rows_as_csv(made))))
    assert [line["tokens"] for line in lines] == ["16", "32"]
    assert float(lines[1]["seconds"]) == 0.1
    assert lines[0]["device"] == 'a "fast", cheap one'
    assert list(csv.DictReader(io.StringIO(rows_as_csv(job([]))))) == []


@pytest.mark.parametrize("suite", list(SUITES))
@pytest.mark.parametrize("num_rows", [0, 1, 3])
def test_every_suite_has_a_plot(suite: str, num_rows: int) -> None:
    shape = SUITES[suite]
    columns = [shape.x.name, *(measure.name for measure in shape.measures)]
    rows: list[Row] = [
        dict.fromkeys(shape.labels, "one") | dict.fromkeys(columns, 2.0**index)
        for index in range(num_rows)
    ]
    assert plot_png(job(rows, suite=suite)).startswith(b"\x89PNG")


def test_watching_from_the_middle_yields_each_row_once() -> None:
    async def watched() -> list[Row]:
        made = job([])
        made.add({"tokens": 1})
        seen: list[Row] = []

        async def watch() -> None:
            async for rows in made.watch():
                seen.extend(rows)

        watching = asyncio.create_task(watch())
        for tokens in range(2, 6):
            await asyncio.sleep(0)
            made.add({"tokens": tokens})
        made.finish("done")
        await watching
        return seen

    assert [one["tokens"] for one in asyncio.run(watched())] == [1, 2, 3, 4, 5]
