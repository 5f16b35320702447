"""Attention maps against the dense matrix, and what they refuse."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.analysis.attention_map import MapPlan, find_links, open_head, plan_map
from engine.analysis.cache import ByteCache
from engine.analysis.document_states import capture_layers_of
from engine.analysis.head_attention import HeadAttention, head_attention_bytes
from engine.analysis.layer_capture import capture_layers, head_view
from engine.analysis.open_document import open_document
from engine.async_engine import AsyncEngine
from engine.attention_types import AttentionMap, MapOptions
from engine.config import EngineConfig
from engine.diagnostics.head_view import HeadView
from engine.diagnostics.lln_diag import Blocks, lln_factors
from engine.diagnostics.rows import HeadRows
from engine.errors import DeadlineExceeded, InvalidInput, LLNError, ResourceNotFound
from engine.model.embedding_model import EmbeddingModel
from engine.steps import finish
from engine.types import Attention, Span

KINDS: tuple[Attention, ...] = get_args(Attention)


def random_head(kind: Attention, length: int, *, gates: bool = False) -> HeadView:
    generator = torch.Generator().manual_seed(length)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mix = random(length, 1).sigmoid() if gates else random(1).sigmoid()
    return HeadView(
        q=random(length, 1, 16) + 0.3,
        k=random(length, 1, 16) - 0.2,
        attention=kind,
        alpha=1 + 0.2 * random(1),
        beta=1 + 0.2 * random(1),
        mix=mix,
        block_size=48,
        num_sinks=(1, 1),
        k_map=(None, random(1, 16)),
    )


def dense_matrix(view: HeadView) -> NDArray[np.float64]:
    factors = lln_factors(view) if view.has_channels else None
    blocks = Blocks(view) if view.has_blocks else None
    rows = HeadRows(view, factors, blocks).full(torch.arange(view.num_tokens))
    return rows[0].numpy()


def cell_sums(matrix: NDArray[np.float64], rows: Tensor, columns: Tensor) -> NDArray[np.float64]:
    return np.array(
        [
            [matrix[top:bottom, left:right].sum() for left, right in pairwise(columns.tolist())]
            for top, bottom in pairwise(rows.tolist())
        ]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [1, 47, 48, 49, 500])
def test_whole_map_is_the_dense_matrix_in_cells(kind: Attention, length: int) -> None:
    view = random_head(kind, length)
    edges = torch.linspace(0, length, min(length, 7) + 1).long()
    sums = finish(HeadAttention.of(view).sums(edges, edges))
    expected = cell_sums(dense_matrix(view), edges, edges)
    np.testing.assert_allclose(sums.numpy(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [(0, 1, 499, 500), (40, 120, 250, 411), (333, 500, 0, 63)])
def test_windows_down_to_single_entries(kind: Attention, window: tuple[int, ...]) -> None:
    view = random_head(kind, 500, gates=True)
    rows, columns = torch.arange(window[0], window[1] + 1), torch.arange(window[2], window[3] + 1)
    sums = finish(HeadAttention.of(view).sums(rows, columns))
    expected = dense_matrix(view)[window[0] : window[1], window[2] : window[3]]
    np.testing.assert_allclose(sums.numpy(), expected, rtol=1e-6, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_strongest_links_of_a_window(kind: Attention) -> None:
    view = random_head(kind, 300)
    plan = MapPlan(
        layer=0,
        head=0,
        rows=Span(20, 290),
        columns=Span(7, 200),
        height=1,
        width=1,
        links=9,
        topics=0,
        topic_tokens=1,
    )
    links = finish(find_links(HeadAttention.of(view), plan))
    window = dense_matrix(view)[20:290, 7:200]
    expected = np.sort(window.flatten())[::-1][:9]
    np.testing.assert_allclose([link.weight for link in links], expected, rtol=1e-7)
    for link in links:
        assert window[link.query - 20, link.key - 7] == pytest.approx(link.weight)


def map_of(
    model: EmbeddingModel, text: str, config: EngineConfig | None = None, **options: Any
) -> AttentionMap:
    async def ask() -> AttentionMap:
        async with AsyncEngine([model], config=config or model.config) as engine:
            return await engine.attention_map(text, options=MapOptions(**options))

    return asyncio.run(ask())


@pytest.mark.parametrize("words", [1, 60, 900])
def test_real_head_matches_what_the_encoder_computed(
    default_model: EmbeddingModel, long_text: str, words: int
) -> None:
    text = " ".join(long_text.split()[:words])
    found = map_of(default_model, text, layer=3, head=5, height=31, width=23)
    document = finish(
        open_document(text, default_model, ByteCache(max_bytes=1 << 30, max_idle_s=9))
    )
    with torch.no_grad():
        layers = [finish(steps) for steps in capture_layers(default_model, document.prepared)]
        view = head_view(default_model, layers[3]).only([5])
    edges = (torch.tensor(found.row_edges), torch.tensor(found.column_edges))
    np.testing.assert_allclose(
        found.sum, cell_sums(dense_matrix(view), *edges), rtol=1e-6, atol=1e-10
    )
    np.testing.assert_allclose(found.mass.sum(1), 1, rtol=1e-9)
    assert found.tokens == document.num_tokens


def test_rows_sum_to_one_for_the_published_model(published_model: EmbeddingModel) -> None:
    found = map_of(published_model, "word " * 700, layer=5, head=0, height=50, width=40)
    assert found.attention == "softmax"
    np.testing.assert_allclose(found.mass.sum(1), 1, rtol=1e-9)
    assert (found.mean * np.diff(found.column_edges)).sum(1) == pytest.approx(1)


def test_topics_are_the_channels_of_the_head(default_model: EmbeddingModel, long_text: str) -> None:
    text = long_text[:4000]
    found = map_of(default_model, text, layer=2, head=1, topics=5, topic_tokens=4)
    assert found.topics is not None
    assert [topic.share for topic in found.topics] == sorted(
        (topic.share for topic in found.topics), reverse=True
    )
    for topic in found.topics:
        assert len(topic.tokens) == len(topic.users) == 4
        assert 1 <= topic.effective_tokens <= found.tokens
        for token in (*topic.tokens, *topic.users):
            if token.characters is not None:
                written = text[slice(*token.characters)].lower()
                assert token.token.removeprefix("##") == written


def test_one_block_has_no_topics(default_model: EmbeddingModel) -> None:
    """LLN takes no share of a text that Diag sees whole."""
    found = map_of(default_model, "a short text", layer=0, head=0, topics=3)
    assert (found.attention, found.topics) == ("block_diagonal", None)


@pytest.mark.parametrize("budget", [1 << 30, 4096])
def test_open_document_answers_as_its_text_does(default_model: EmbeddingModel, budget: int) -> None:
    """Also where nothing but the document itself can be kept."""
    text = "A sentence of some length, again and again. " * 30
    options = MapOptions(layer=4, head=7, rows=Span(9, 90), columns=Span(0, 33), links=3)

    async def ask() -> list[AttentionMap]:
        config = replace(default_model.config, max_open_bytes=budget)
        async with AsyncEngine([default_model], config=config) as engine:
            first = await engine.attention_map(text, options=options)
            other = replace(options, layer=1, head=0)
            await engine.attention_map(document=first.document, options=other)
            again = await engine.attention_map(document=first.document, options=options)
            return [first, again]

    first, again = asyncio.run(ask())
    np.testing.assert_array_equal(first.mass, again.mass)
    assert first.links == again.links


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"layer": 6}, "invalid_layer"),
        ({"layer": -1}, "invalid_layer"),
        ({"head": 12}, "invalid_head"),
        ({"rows": Span(0, 99)}, "invalid_window"),
        ({"rows": Span(3, 3)}, "invalid_window"),
        ({"columns": Span(-1, 3)}, "invalid_window"),
        ({"height": 0}, "invalid_height"),
        ({"width": 100_000}, "invalid_width"),
        ({"links": 100_000}, "invalid_links"),
        ({"topics": -1}, "invalid_topics"),
        ({"topic_tokens": 0}, "invalid_topic_tokens"),
    ],
)
def test_bad_options(default_model: EmbeddingModel, options: dict[str, Any], code: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        map_of(default_model, "a short text", **{"layer": 0, "head": 0, **options})
    assert raised.value.code == code
    assert raised.value.limit is not None
    assert raised.value.actual is not None


def test_price_beyond_the_limit_is_refused_before_any_work(
    published_model: EmbeddingModel, default_model: EmbeddingModel
) -> None:
    config = replace(published_model.config, max_map_scores=20_000)
    text = "word " * 500
    with pytest.raises(InvalidInput, match="at most 39 rows") as raised:
        map_of(published_model, text, config, layer=0, head=0)
    assert (raised.value.code, raised.value.actual) == ("map_too_large", 502 * 502)
    zoomed = map_of(published_model, text, config, layer=0, head=0, rows=Span(100, 139))
    assert zoomed.mass.shape == (39, 256)
    assert map_of(default_model, text, config, layer=0, head=0).mass.shape == (256, 256)
    with pytest.raises(InvalidInput, match=r"links of 502 rows .* or for fewer columns$"):
        map_of(default_model, text, config, layer=0, head=0, links=1)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"text": "a", "document": "doc-1"}, InvalidInput),
        ({}, InvalidInput),
        ({"document": "doc-gone"}, ResourceNotFound),
        ({"text": ""}, InvalidInput),
        ({"text": "half a pair \ud83d"}, InvalidInput),
        ({"text": "a text", "timeout_s": 0.0}, DeadlineExceeded),
    ],
)
def test_bad_documents(
    default_model: EmbeddingModel, request_: dict[str, Any], error: type[LLNError]
) -> None:
    async def ask() -> None:
        async with AsyncEngine([default_model], config=default_model.config) as engine:
            await engine.attention_map(**request_, options=MapOptions(layer=0, head=0))

    with pytest.raises(error):
        asyncio.run(ask())


def test_a_document_belongs_to_its_model(
    default_model: EmbeddingModel, published_model: EmbeddingModel
) -> None:
    async def ask() -> None:
        async with AsyncEngine([default_model, published_model]) as engine:
            options = MapOptions(layer=0, head=0)
            found = await engine.attention_map("a text", options=options)
            await engine.attention_map(
                document=found.document, model=published_model.name, options=options
            )

    with pytest.raises(InvalidInput, match="was read by default"):
        asyncio.run(ask())


def test_cached_layers_stay_readable_after_their_eviction(
    default_model: EmbeddingModel,
) -> None:
    cache = ByteCache(max_bytes=1 << 20, max_idle_s=60)
    document = finish(open_document("one two three", default_model, cache))
    fresh = [finish(steps) for steps in capture_layers_of(document, cache)]
    layers = capture_layers_of(document, cache)
    first = finish(next(layers))
    cache.put_source("another document", None, cache.max_bytes)
    cached = [first, *(finish(steps) for steps in layers)]
    assert len(cached) == default_model.info.num_layers
    for layer, expected in zip(cached, fresh, strict=True):
        assert layer.index == expected.index
        torch.testing.assert_close(layer.after, expected.after)


@pytest.mark.parametrize("bytes_a_token", [10_700, 10_800, 11_200, 11_600])
def test_a_document_stays_open_beside_all_that_is_kept_of_it(
    default_model: EmbeddingModel, bytes_a_token: int
) -> None:
    """Where the budget is too small for its states, fits them, and fits a head besides."""
    text, num_tokens = "word " * 198, 200

    async def ask() -> None:
        config = replace(default_model.config, max_open_bytes=num_tokens * bytes_a_token)
        async with AsyncEngine([default_model], config=config) as engine:
            handle = (await engine.keep_open(text)).handle
            options = MapOptions(layer=5, head=0)
            assert (await engine.attention_map(document=handle, options=options)).tokens == 200
            await engine.structure(document=handle)
            await engine.attention_map(document=handle, options=options)

    asyncio.run(ask())


def test_two_models_side_by_side_close_no_document(
    default_model: EmbeddingModel, published_model: EmbeddingModel
) -> None:
    """Where the budget fits the states of one of them."""
    models, text = [default_model, published_model], "word " * 198

    async def ask() -> None:
        config = replace(default_model.config, max_open_bytes=200 * 12_000)
        async with AsyncEngine(models, config=config) as engine:
            opened = [await engine.keep_open(text, model=model.name) for model in models]
            for layer, document in product((0, 5), opened):
                options = MapOptions(layer=layer, head=0)
                await engine.attention_map(document=document.handle, options=options)

    asyncio.run(ask())


@pytest.mark.parametrize("words", [4, 900])
def test_a_cached_head_has_no_memory_of_the_others(
    default_model: EmbeddingModel, words: int
) -> None:
    cache = ByteCache(max_bytes=1 << 30, max_idle_s=9)
    document = finish(open_document("word " * words, default_model, cache))
    with torch.no_grad():
        head = finish(open_head(document, 0, 3, cache))
    assert head.view.q.untyped_storage().nbytes() == head.view.q.nbytes
    size = head_attention_bytes(document.num_tokens, head.view.head_size, head.view.q.dtype)
    assert head.num_bytes == size if head.prefixes else head.num_bytes < size


def test_plan_has_no_cell_without_a_token(default_model: EmbeddingModel) -> None:
    cache = ByteCache(max_bytes=1 << 20, max_idle_s=9)
    document = finish(open_document("one two three", default_model, cache))
    plan = plan_map(document, MapOptions(layer=0, head=0, height=64), default_model.config)
    assert plan.row_edges.tolist() == list(range(document.num_tokens + 1))


class TestByteCache:
    def test_keeps_within_its_budget_what_was_used_last(self) -> None:
        cache = ByteCache(max_bytes=10, max_idle_s=60)
        assert cache.put("a", 1, 4)
        assert cache.put("b", 2, 4)
        assert cache.get("a") == 1
        assert cache.put("c", 3, 4)
        assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
        assert cache.num_bytes == 8

    def test_refuses_what_can_never_fit(self) -> None:
        cache = ByteCache(max_bytes=10, max_idle_s=60)
        cache.put("a", 1, 4)
        assert not cache.put("whale", 2, 11)
        assert cache.get("a") == 1

    def test_replaces(self) -> None:
        cache = ByteCache(max_bytes=10, max_idle_s=60)
        cache.put("a", 1, 9)
        cache.put("a", 2, 9)
        assert (cache.get("a"), len(cache)) == (2, 1)

    def test_what_is_derived_goes_before_its_source(self) -> None:
        cache = ByteCache(max_bytes=10, max_idle_s=60)
        cache.put_source("text", 1, 3)
        cache.put("old", 2, 3)
        assert cache.put("new", 3, 6)
        assert (cache.get("text"), cache.get("old"), cache.get("new")) == (1, None, 3)
        assert not cache.put("whale", 4, 8)
        assert (cache.get("text"), cache.max_derived_bytes) == (1, 7)

    def test_a_source_takes_the_place_of_what_is_derived_and_then_of_older_ones(self) -> None:
        cache = ByteCache(max_bytes=10, max_idle_s=60)
        cache.put_source("first", 1, 2)
        cache.put("derived", 2, 6)
        cache.put_source("second", 3, 3)
        assert (cache.get("first"), cache.get("derived"), cache.get("second")) == (1, None, 3)
        cache.put_source("third", 4, 1)
        assert (cache.get("first"), cache.get("second"), cache.get("third")) == (None, 3, 4)

    def test_sources_leave_half_of_the_budget_to_what_is_derived(self) -> None:
        cache = ByteCache(max_bytes=10, max_idle_s=60)
        for number in range(9):
            cache.put_source(number, number, 2)
            assert cache.max_derived_bytes >= 5
        assert cache.put("derived", 1, 5)

    def test_a_source_of_more_than_half_of_the_budget_is_the_only_one(self) -> None:
        cache = ByteCache(max_bytes=10, max_idle_s=60)
        cache.put_source("small", 1, 1)
        assert cache.put_source("large", 2, 9)
        assert (cache.get("small"), cache.get("large")) == (None, 2)
        assert not cache.put_source("whale", 3, 11)
        assert cache.get("large") == 2

    def test_forgets_what_nobody_asks_for(self) -> None:
        now = [0.0]
        cache = ByteCache(max_bytes=10, max_idle_s=60, clock=lambda: now[0])
        cache.put("a", 1, 1)
        now[0] = 50
        cache.put("b", 2, 1)
        now[0] = 70
        assert (cache.get("a"), cache.get("b")) == (None, 2)
