"""Several questions about one open document: what they need is computed once, and no more of it."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from engine.analysis.attention_map import map_steps, open_head, plan_map
from engine.analysis.cache import ByteCache
from engine.analysis.diagnosis import read_layers
from engine.analysis.diagnosis_plan import plan_diagnosis
from engine.analysis.document_states import (
    capture_layers_of,
    document_capture_bytes,
    project_layer,
    project_layers_of,
    states_before,
)
from engine.analysis.layer_capture import capture_bytes, capture_layers
from engine.analysis.open_document import OpenDocument, open_document
from engine.attention_types import AttentionMap, MapOptions
from engine.model.embedding_model import EmbeddingModel
from engine.model.tiled_pass import kept_bytes
from engine.steps import Answer, Steps, advance, finish
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

LONG = "The otters live by the river, and the tea is dear. " * 170  # several tiles
SHORT = "a text of one batch"
LAST = 5


@pytest.fixture(scope="module")
def model(write_checkpoint: WriteCheckpoint) -> EmbeddingModel:
    """Of as many layers as those that ship, so that the first and the last are far apart."""
    folder = write_checkpoint("bert", num_hidden_layers=LAST + 1)
    return calibrated(folder, block_size=64, num_sinks=(1, 1))


@pytest.fixture
def cache() -> ByteCache:
    return ByteCache(max_bytes=1 << 30, max_idle_s=60)


def test_a_map_of_the_first_layer_does_not_wait_for_the_last(
    model: EmbeddingModel, cache: ByteCache
) -> None:
    document = opened(LONG, model, cache)
    first = count_steps(map_of(document, cache, layer=0))
    rest = count_steps(map_of(document, cache, layer=LAST))
    assert first < rest / 2


def test_questions_asked_together_read_the_text_once(
    model: EmbeddingModel, cache: ByteCache
) -> None:
    document = opened(LONG, model, cache)
    alone = count_steps(map_of(document, cache, layer=LAST))
    other = opened(LONG + "Again.", model, cache)
    steps, maps = run_together([map_of(other, cache, layer=LAST, head=one) for one in range(3)])
    assert steps < 1.5 * alone
    assert [found.head for found in maps] == [0, 1, 2]
    for found in maps:
        np.testing.assert_allclose(found.mass.sum(1), 1, rtol=1e-4)


@pytest.mark.parametrize("text", [SHORT, LONG])
def test_shared_layers_are_those_of_a_pass_of_their_own(
    model: EmbeddingModel, cache: ByteCache, text: str
) -> None:
    document = opened(text, model, cache)
    layers = capture_layers_of(document, cache)
    for steps in capture_layers(model, document.prepared):
        own, shared = finish(steps), finish(next(layers))
        assert shared.index == own.index
        for name in ("before", "after", "q", "k", "v"):
            torch.testing.assert_close(getattr(shared, name), getattr(own, name))


def test_a_diagnosis_and_a_map_share_their_layers(model: EmbeddingModel, cache: ByteCache) -> None:
    document = opened(LONG, model, cache)
    plan = plan_diagnosis(model, [1], [0], ["temperature"])

    def diagnosis() -> Steps[Any]:
        layers = capture_layers_of(document, cache)
        return read_layers(model, document.prepared, plan, layers)

    _, (readings, found) = run_together([diagnosis(), map_of(document, cache, layer=LAST)])
    assert found.layer == LAST
    again = finish(diagnosis())
    for one, other in zip(readings, again, strict=True):
        np.testing.assert_array_equal(
            one.readings["temperature"].reading.values, other.readings["temperature"].reading.values
        )


def test_a_pass_that_is_left_is_taken_up_by_the_next_reader(
    model: EmbeddingModel, cache: ByteCache
) -> None:
    document = opened(LONG, model, cache)
    assert document_capture_bytes(document, cache) == capture_bytes(
        model.encoder, document.num_tokens
    )
    left = map_of(document, cache, layer=LAST)
    for _ in range(10):
        advance(left)
    left.close()
    whole = count_steps(map_of(document, cache, layer=LAST))
    fresh = opened(LONG + "Again.", model, cache)
    assert whole <= count_steps(map_of(fresh, cache, layer=LAST)) - 8
    assert document_capture_bytes(document, cache) < capture_bytes(
        model.encoder, document.num_tokens
    )


def test_a_pass_that_fails_begins_again_for_the_other_readers(
    model: EmbeddingModel, cache: ByteCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = opened(LONG, model, cache)
    unlucky, lucky = (project_layer(document, 2, cache) for _ in range(2))
    for steps in (unlucky, lucky):
        advance(steps)
    with monkeypatch.context() as patch:  # as when the device runs out of memory in between
        patch.setattr(model.encoder, "layers", ())
        with pytest.raises(IndexError):
            finish(unlucky)
    expected = [finish(steps) for steps in capture_layers(model, document.prepared)][2]
    torch.testing.assert_close(finish(lucky).q, expected.q)


def test_states_are_kept_where_there_is_no_room_for_their_pass(
    model: EmbeddingModel, cache: ByteCache
) -> None:
    num_tokens = opened(LONG, model, cache).num_tokens
    of_states = 7 * kept_bytes(model.encoder, num_tokens, keep_projections=False)
    small = ByteCache(max_bytes=of_states * 5 // 4, max_idle_s=60)
    document = opened(LONG, model, small)
    read = count_steps(map_of(document, small, layer=LAST, head=0))
    again = count_steps(map_of(document, small, layer=LAST, head=1))
    assert again < read / 2


def test_a_document_without_room_for_its_states_is_read_each_time(
    model: EmbeddingModel,
) -> None:
    cache = ByteCache(max_bytes=1 << 20, max_idle_s=60)
    document = opened(LONG, model, cache)
    maps = [finish(map_of(document, cache, layer=layer)) for layer in (0, LAST, 0)]
    np.testing.assert_array_equal(maps[0].mass, maps[2].mass)
    assert cache.num_bytes <= cache.max_bytes


def test_heads_of_a_layer_do_not_wait_for_what_it_returns(
    model: EmbeddingModel, cache: ByteCache
) -> None:
    document = opened(LONG, model, cache)
    finish(heads_of(document, cache, layer=0, heads=[0]))
    assert count_steps(states_before(document, 1, cache)) > 3, "not computed yet"
    assert count_steps(states_before(document, 1, cache)) == 1


def test_only_layers_that_are_read_are_projected_and_only_once(
    model: EmbeddingModel, cache: ByteCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    projected: list[int] = []
    usual = model.encoder.projected

    def noting(layer: int, states: Any, bounds: Any) -> Any:
        projected.append(layer)
        return usual(layer, states, bounds)

    monkeypatch.setattr(model.encoder, "projected", noting)
    document = opened(LONG, model, cache)
    parts = [finish(heads_of(document, cache, layer=LAST, heads=[one])) for one in (2, 3)]
    run_together([map_of(document, cache, layer=LAST, head=3) for _ in range(2)])
    assert projected == [LAST]
    whole = finish(heads_of(document, cache, layer=LAST, heads=[2, 3]))
    values = [read[0].readings["entropy"].reading.values for read in (*parts, whole)]
    np.testing.assert_allclose(np.concatenate(values[:2]), values[2], rtol=1e-6)


def test_a_head_that_is_asked_for_twice_at_once_is_opened_once(
    model: EmbeddingModel, cache: ByteCache
) -> None:
    document = opened(LONG, model, cache)
    _, (one, other) = run_together([open_head(document, 0, 0, cache) for _ in range(2)])
    assert one is other


def heads_of(
    document: OpenDocument, cache: ByteCache, *, layer: int, heads: list[int]
) -> Steps[Any]:
    plan = plan_diagnosis(document.model, [layer], heads, ["entropy"])
    layers = project_layers_of(document, cache, plan.seen_layers)
    return read_layers(document.model, document.prepared, plan, layers)


def opened(text: str, model: EmbeddingModel, cache: ByteCache) -> OpenDocument:
    return finish(open_document(text, model, cache))


def map_of(
    document: OpenDocument, cache: ByteCache, *, layer: int, head: int = 0
) -> Steps[AttentionMap]:
    options = MapOptions(layer=layer, head=head, height=8, width=1)
    return map_steps(document, plan_map(document, options, document.model.config), cache)


def count_steps(steps: Steps[Any]) -> int:
    return run_together([steps])[0]


def run_together(works: list[Steps[Any]]) -> tuple[int, list[Any]]:
    """How many steps they took, one of each in turn, and their answers."""
    answers: list[Answer[Any] | None] = [None] * len(works)
    for taken, index in enumerate(cycle(range(len(works)))):
        if all(answers):
            return taken, [answer.value for answer in answers if answer]
        if answers[index] is None:
            answers[index] = advance(works[index])
    raise AssertionError("a cycle has no end")
