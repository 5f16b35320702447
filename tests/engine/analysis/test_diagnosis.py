"""One text's diagnosis with a real model: plans, prices, layers, and what drift samples."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
import torch

from engine.analysis.diagnosis import read_layers
from engine.analysis.diagnosis_plan import fit_plan, plan_diagnosis
from engine.analysis.drift import INSTRUMENTS as DRIFT
from engine.analysis.drift import DriftSampler
from engine.analysis.layer_capture import capture_layers, head_view, layer_view
from engine.async_engine import AsyncEngine
from engine.attention_types import Diagnosis
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import InvalidInput
from engine.execution.documents import prepare_document
from engine.execution.inputs import PreparedText
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.observer import EngineObserver
from engine.steps import advance, finish
from engine.types import EmbedOptions
from kernels.attention import PackedSequences

TEXT = topics["formatstrings"][:1_500]
LONG_TEXT = "\n\n".join(topics.values())[:14_000]


def prepared(model: EmbeddingModel, text: str) -> PreparedText:
    return prepare_document(text, model, EmbedOptions(), None)


@pytest.fixture
def engine(default_model: EmbeddingModel, cpu_config: EngineConfig) -> Iterator[Engine]:
    with Engine(default_model, config=cpu_config) as engine:
        yield engine


@pytest.mark.parametrize("text", ["a", TEXT], ids=["one-word", "two-blocks"])
def test_everything_of_a_text_is_finite_json(engine: Engine, text: str) -> None:
    found = engine.diagnose(text, layers=[0, 5])
    document = json.dumps([reading.__dict__ for reading in found.instruments], default=vars)
    assert "NaN" not in document
    assert "Infinity" not in document
    assert found.left_out == ()
    for reading in found.instruments:
        assert reading.unit
        assert reading.cost
        width = 12 if reading.scope == "head" else 1
        assert [len(row) for row in reading.values] == [width] * 2
        for part in reading.beside:
            assert len(part.values) == 2


@pytest.mark.parametrize("name", ["default_model", "published_model"])
def test_what_mode_exact_leaves_an_estimate(name: str, request: pytest.FixtureRequest) -> None:
    """As the schema of the mode and docs/api.md say."""
    model: EmbeddingModel = request.getfixturevalue(name)
    with Engine(model, config=model.config) as engine:
        found = engine.diagnose(TEXT, layers=[0], heads=[0], mode="exact")
    assert found.tokens > 128
    assert not [one.instrument for one in found.instruments if one.error is not None]
    beside = {
        (one.instrument, part.name)
        for one in found.instruments
        for part in one.beside
        if part.error is not None
    }
    assert beside == {("attention_fisher", "eigenvalues")}


def test_tiles_give_what_one_pass_gives(shallow_model: EmbeddingModel) -> None:
    """The layers of long texts are computed tile by tile."""
    text = prepared(shallow_model, LONG_TEXT)
    tiled = replace(shallow_model, config=EngineConfig(device="cpu", min_sweep_tokens=1_024))
    whole = replace(shallow_model, config=EngineConfig(device="cpu", min_sweep_tokens=10**6))
    num_pauses = num_layers = 0
    for tiled_steps, whole_steps in zip(
        capture_layers(tiled, text), capture_layers(whole, text), strict=True
    ):
        while (answer := advance(tiled_steps)) is None:
            num_pauses += 1
        num_layers += 1
        layer, other = answer.value, finish(whole_steps)
        assert layer.index == other.index
        for name in ("before", "after", "q", "k", "v"):
            torch.testing.assert_close(
                getattr(layer, name), getattr(other, name), rtol=1e-3, atol=1e-3
            )
    assert num_pauses > num_layers


def test_states_follow_from_what_the_heads_add(default_model: EmbeddingModel) -> None:
    """The view's v and out, and the layer's own mixing, are those of the encoder."""
    text = prepared(default_model, TEXT)
    step = finish(next(capture_layers(default_model, text)))
    layer = default_model.encoder.weights.layers[0]
    mixed = layer_view(default_model, step).mix_tokens(step.before)
    with torch.no_grad():
        try:
            while True:
                next(mixed)
        except StopIteration as end:
            without_biases = end.value
    assert layer.qkv.bias is not None
    bias = layer.qkv.bias[-384:]
    attend = default_model.encoder.attention[0]
    packed = PackedSequences.of([0, len(step.q)], step.q.device)
    by_head = head_view(default_model, step).out
    assert by_head is not None
    out = by_head.flatten(0, 1)
    attended = attend(step.q, step.k, step.v, packed).flatten(1)
    torch.testing.assert_close(without_biases + bias @ out, attended @ out, rtol=1e-3, atol=1e-3)


def test_path_lengths_add_up(engine: Engine) -> None:
    found = engine.diagnose(TEXT, instruments=["path_lengths"], layers=[2])
    (reading,) = found.instruments
    (norms,) = [np.asarray(part.values[0]) for part in reading.beside if part.name == "norms"]
    assert len(norms) == 4  # no head, one, two or three
    assert (norms > 0).all()
    assert 0 <= reading.values[0][0] <= 1


def test_rank_collapse_is_the_residual(engine: Engine) -> None:
    found = engine.diagnose(TEXT, instruments=["rank_collapse"])
    (reading,) = found.instruments
    text = prepared(engine.model, TEXT)
    for steps in capture_layers(engine.model, text):
        layer = finish(steps)
        states = layer.after.double()
        expected = (states - states.mean(0)).norm() / states.norm()
        assert reading.values[layer.index][0] == pytest.approx(float(expected), rel=1e-6)


def test_exact_beyond_the_budget_is_refused_with_the_price(default_model: EmbeddingModel) -> None:
    config = EngineConfig(device="cpu", max_exact_pairs=1_000_000)
    asked = plan_diagnosis(default_model, None, None, ["entropy"], "exact")
    assert fit_plan(asked, default_model, 100, config).effort.mode == "exact"
    with pytest.raises(InvalidInput, match="sampled") as caught:
        fit_plan(asked, default_model, 1_000, config)
    assert caught.value.code == "exact_too_expensive"
    assert (caught.value.limit, caught.value.actual) == (1_000_000, 72 * 1_000**2)


def test_too_many_sampled_rows_are_refused_with_the_price(default_model: EmbeddingModel) -> None:
    config = EngineConfig(device="cpu", max_exact_pairs=72 * 4_000 * 10_000)
    asked = plan_diagnosis(default_model, None, None, ["entropy"], sampled_rows=4_000)
    assert fit_plan(asked, default_model, 10_000, config).effort.sampled_rows == 4_000
    with pytest.raises(InvalidInput, match="fewer rows") as caught:
        fit_plan(asked, default_model, 10_001, config)
    assert caught.value.code == "rows_too_expensive"
    assert caught.value.actual == 72 * 4_000 * 10_001
    usual = plan_diagnosis(default_model, None, None, ["entropy"])
    assert fit_plan(usual, default_model, 10**6, config).effort.sampled_rows == 96


def test_the_sample_is_settable_and_told(engine: Engine) -> None:
    def ask(**fields: Any) -> Diagnosis:
        text = LONG_TEXT[:2_600]  # of more than one block: the rows of one block are all read
        return engine.diagnose(text, layers=[0], instruments=["entropy"], mode="sampled", **fields)

    found = ask(seed=5, sampled_rows=32, quantiles=[0.9, 0.5])
    assert (found.seed, found.sampled_rows, found.rows_read) == (5, 32, 32)
    assert found.quantiles == (0.5, 0.9)
    again, other = (ask(seed=seed, sampled_rows=32) for seed in (5, 6))
    [entropy], [same], [another] = (one.instruments for one in (found, again, other))
    assert entropy.values == same.values != another.values
    assert "32 rows" in entropy.method
    [more] = ask(sampled_rows=300).instruments
    assert more.error is not None
    assert same.error is not None
    assert np.mean(more.error) < np.mean(same.error)


def test_a_text_of_one_block_is_told_to_be_softmax(engine: Engine) -> None:
    short = engine.diagnose("a few words", layers=[0], instruments=["lognormality"])
    assert short.attention == ("block_diagonal",)
    assert "softmax" in short.notes[0]
    assert "5 tokens" in short.notes[0]
    longer = engine.diagnose(LONG_TEXT[:2_600], layers=[0], instruments=["lognormality"])
    assert longer.attention == ("lln_diag",)
    assert "lognormality" in longer.notes[0]
    assert engine.diagnose(LONG_TEXT[:2_600], layers=[0], instruments=["energy"]).notes == ()


def test_expensive_instruments_are_skipped_unless_named(
    default_model: EmbeddingModel, published_model: EmbeddingModel, cpu_config: EngineConfig
) -> None:
    everything = plan_diagnosis(published_model, None, None, None, "auto")
    fitted = fit_plan(everything, published_model, 10_000, cpu_config)
    dropped = {one.instrument for one in fitted.skipped}
    assert {"spectral_gap", "path_lengths"} <= dropped
    assert dropped.isdisjoint(one.name for one in fitted.instruments)
    named = plan_diagnosis(published_model, None, None, ["spectral_gap"], "auto")
    assert fit_plan(named, published_model, 10_000, cpu_config).skipped == ()
    linear = plan_diagnosis(default_model, None, None, None, "auto")
    kept = {one.name for one in fit_plan(linear, default_model, 10_000, cpu_config).instruments}
    assert "spectral_gap" in kept


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"layers": [6]}, "invalid_layers"),
        ({"layers": []}, "invalid_layers"),
        ({"heads": [-1]}, "invalid_heads"),
        ({"instruments": []}, "invalid_instruments"),
        ({"instruments": ["horoscope"]}, "unknown_instrument"),
        ({"mode": "rough"}, "invalid_mode"),
        ({"sampled_rows": 1}, "invalid_sampled_rows"),
        ({"sampled_rows": 10**9}, "invalid_sampled_rows"),
        ({"seed": -1}, "invalid_seed"),
        ({"seed": 2**53}, "invalid_seed"),
        ({"quantiles": [1.5]}, "invalid_quantiles"),
        ({"quantiles": [math.nan]}, "invalid_quantiles"),
        ({"quantiles": [0.5] * 17}, "invalid_quantiles"),
    ],
)
def test_bad_questions(engine: Engine, fields: dict[str, object], code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        engine.diagnose(TEXT, **fields)  # type: ignore[arg-type]
    assert caught.value.code == code


def test_work_is_done_in_turns(default_model: EmbeddingModel, cpu_config: EngineConfig) -> None:
    plan = plan_diagnosis(default_model, [0], [0, 5, 11], None, "auto")
    plan = fit_plan(plan, default_model, 4_000, cpu_config)
    steps = read_layers(default_model, prepared(default_model, LONG_TEXT[:6_000]), plan)
    num_pauses = 0
    while (answer := advance(steps)) is None:
        num_pauses += 1
    assert len(answer.value) == 1
    assert num_pauses > 10  # a turn is as long as a slice of time, however fast the machine


class Listener(EngineObserver):
    def __init__(self) -> None:
        self.seen: list[tuple[int, str, float]] = []

    def attention_sampled(self, *, model: str, layer: int, instrument: str, value: float) -> None:
        self.seen.append((layer, instrument, value))


def test_live_texts_are_sampled_for_drift(default_model: EmbeddingModel) -> None:
    listener = Listener()
    config = EngineConfig(device="cpu", drift_rate=1.0)

    async def run() -> None:
        async with AsyncEngine([default_model], config=config, observer=listener) as engine:
            await engine.embed(["A text that passes by."])
            async with asyncio.timeout(60):
                while len(listener.seen) < 18:
                    await asyncio.sleep(0.01)

    asyncio.run(run())
    first = listener.seen[:18]
    assert {(layer, name) for layer, name, _ in first} == {
        (layer, name) for layer in range(6) for name in DRIFT
    }
    assert all(math.isfinite(value) for _, _, value in listener.seen)


def test_drift_keeps_its_budget(default_model: EmbeddingModel) -> None:
    text = prepared(default_model, "short")
    off = DriftSampler(EngineConfig(drift_rate=0.0))
    assert off.choose([text] * 10_000) is None
    sampler = DriftSampler(EngineConfig(drift_rate=1.0, drift_max_tokens=8))
    assert sampler.choose([prepared(default_model, TEXT)]) is None  # too long
    assert sampler.choose([text]) is text
    assert sampler.choose([text]) is None  # one at a time
    sampler.done()
    sampler.spend(60.0)
    assert sampler.choose([text]) is None  # beyond its share of the time
    rare = DriftSampler(EngineConfig(drift_rate=0.01), seed=0)
    chosen = 0
    for _ in range(3_000):
        if rare.choose([text]) is not None:
            chosen += 1
            rare.done()
    assert 10 < chosen < 60


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_shares_are_between_0_and_1(share: float) -> None:
    with pytest.raises(InvalidInput, match="drift_rate"):
        EngineConfig(drift_rate=share)
