"""Recipes and training plans: what they accept, and the errors for what they reject."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.errors import InvalidInput
from engine.training.recipe import Stage, TrainingPlan, load_recipe, parse_stages, recipe_names

AS_JSON: dict[str, Any] = {
    "kind": "contrast",
    "steps": 3,
    "lengths": [64, 96],
    "batch_tokens": 128,
    "rates": {"maps": 1e-3},
    "query_tokens": 16,
}


def test_stages_from_json() -> None:
    found = parse_stages(
        [{"kind": "states", "steps": 3, "lengths": [64], "batch_tokens": 64, "rates": {}}]
    )
    assert found == (Stage(kind="states", steps=3, lengths=(64,), batch_tokens=64, rates={}),)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ({}, "list of objects"),
        ([{"kind": "states", "pace": 3}], "a stage has no field pace"),
        ([{"kind": "states"}], "incomplete: it lacks batch_tokens, lengths, rates, steps"),
    ],
)
def test_stages_of_the_wrong_form(items: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse_stages(items)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "attend"}, "kind must be one of attention, states, contrast, pairs"),
        ({"kind": ["states"]}, "kind must be one of"),
        ({"steps": "3"}, "steps must be a whole number of at least 1, got '3'"),
        ({"steps": 2.5}, "steps must be"),
        ({"steps": -1}, "steps must be"),
        ({"steps": True}, "steps must be"),
        ({"lengths": []}, r"lengths must be a list of numbers of tokens, got \[\]"),
        ({"lengths": "64"}, "lengths must be a list of numbers of tokens, got '64'"),
        ({"lengths": 64}, "lengths must be"),
        ({"lengths": [64, "96"]}, "a length must be a whole number of at least 1, got '96'"),
        ({"lengths": [0]}, "a length must be a whole number of at least 1, got 0"),
        ({"batch_tokens": None}, "batch_tokens must be"),
        ({"batch_tokens": 95}, "a batch of 95 tokens is too small for a window of 96"),
        ({"query_tokens": 0}, "query_tokens must be a whole number"),
        ({"query_tokens": 40}, "a query of 40 tokens is more than half of a window of 64"),
        ({"rates": [1e-3]}, "rates must be an object of learning rates"),
        ({"rates": {"head": 1e-3}}, "one of scalars, maps, encoder, got 'head'"),
        ({"rates": {"maps": "1e-3"}}, "the rate of maps must be a number of at least 0"),
        ({"rates": {"maps": -1e-3}}, "the rate of maps must be"),
        ({"rates": {"maps": float("nan")}}, "the rate of maps must be"),
        ({"rates": {"maps": float("inf")}}, "the rate of maps must be"),
        ({"passage_share": 1.5}, "passage_share must be from 0 to 1, got 1.5"),
        ({"cut_share": -0.5}, "cut_share must be from 0 to 1, got -0.5"),
        ({"stretches": -1}, "stretches must be a whole number of at least 0, got -1"),
        ({"shortest": 0.5}, "shortest must be a whole number of at least 0, got 0.5"),
        ({"held_share": "all"}, "held_share must be a number of at least 0, got 'all'"),
        ({"context_share": -1}, "context_share must be a number of at least 0"),
        ({"mean_share": None}, "mean_share must be a number of at least 0, got None"),
        ({"fidelity_share": -1}, "fidelity_share must be a number of at least 0"),
        ({"linked": 1}, "linked must be true or false, got 1"),
    ],
)
def test_invalid_fields_of_a_stage(change: dict[str, object], message: str) -> None:
    assert parse_stages([AS_JSON])
    with pytest.raises(InvalidInput, match=message) as caught:
        parse_stages([AS_JSON | change])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stages": ()}, "needs a stage"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"precision": "float16"}, "precision must be one of float32, bfloat16"),
        ({"teacher_window": 2}, "teacher_window must be"),
        ({"warmup": -1}, "warmup must be"),
        ({"clip": float("nan")}, "clip must be"),
        ({"save_every": 0}, "save_every must be"),
        ({"watch_every": 0.5}, "watch_every must be"),
    ],
)
def test_invalid_fields_of_a_plan(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        replace(TrainingPlan(), **change)


def test_every_recipe_can_be_run() -> None:
    assert recipe_names() == [
        *("documents", "encoder", "imitate", "lln", "passages", "passages-long", "questions"),
    ]
    for name in recipe_names():
        assert TrainingPlan(stages=load_recipe(name)).num_steps > 0
    assert not TrainingPlan().trains("encoder")
    with pytest.raises(InvalidInput, match="imitate, lln, passages, passages-long, questions"):
        load_recipe("quick")
