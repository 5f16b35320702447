"""A document's parts: where they may begin, how they nest, and that they are found."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch

from engine.analysis.cache import ByteCache
from engine.analysis.open_document import (
    LINE,
    PARAGRAPH,
    SENTENCE,
    OpenDocument,
    breaks_before,
    open_document,
)
from engine.analysis.passages import cohesion_of_passages, passage_vectors
from engine.analysis.segmentation import (
    choose_boundaries,
    cohesion,
    depths,
    nested,
    places_of,
    spans_at,
    sums_of,
    usual_scales,
)
from engine.async_engine import AsyncEngine
from engine.attention_types import Segment, Structure
from engine.engine import Engine
from engine.errors import InvalidInput
from engine.model.embedding_model import EmbeddingModel
from engine.steps import finish
from engine.types import Span

SHIPS = (
    "The ship left the harbour at dawn under full sail, and the crew hauled the anchor aboard. "
    "A gale from the west drove heavy seas over the bow, and the captain ordered the mast cut. "
)
BREAD = (
    "Knead the dough with warm water, salt and yeast until it is smooth, then let it rise. "
    "Bake the loaf in a hot oven for forty minutes and let it cool on a rack before slicing. "
)
STARS = (
    "The telescope gathers the faint light of distant galaxies upon a mirror of polished glass. "
    "Astronomers measure the redshift of each spectrum to learn how fast the stars recede. "
)


def structure_of(model: EmbeddingModel, text: str, **options: Any) -> Structure:
    async def ask() -> Structure:
        async with AsyncEngine([model], config=model.config) as engine:
            return await engine.structure(text, **options)

    return asyncio.run(ask())


def check_nesting(segments: Sequence[Segment], whole: Span) -> None:
    assert segments[0].tokens.start == whole.start
    assert segments[-1].tokens.end == whole.end
    for one, other in pairwise(segments):
        assert one.tokens.end == other.tokens.start
        assert one.characters.end <= other.characters.start
    for segment in segments:
        assert segment.tokens.start < segment.tokens.end
        if segment.children:
            assert len(segment.children) > 1
            check_nesting(segment.children, segment.tokens)


@pytest.mark.parametrize("name", ["default_model", "published_model"])
def test_changes_of_subject_are_found(name: str, request: pytest.FixtureRequest) -> None:
    model: EmbeddingModel = request.getfixturevalue(name)
    topics = [SHIPS, BREAD, STARS, SHIPS]
    text = "\n\n".join("\n\n".join([topic] * 4) for topic in topics)
    found = structure_of(model, text, scales=[160])
    starts = {text[segment.characters.start :][:20] for segment in found.segments}
    assert len(found.segments) == 4
    changes = [text.index(topic) for topic in (BREAD, STARS)]
    changes.append(text.index(SHIPS, text.index(STARS)))
    hits = [segment.characters.start in changes for segment in found.segments]
    assert sum(hits) == 3, starts


def test_segments_nest_and_cover_the_text(default_model: EmbeddingModel, long_text: str) -> None:
    text = long_text[:14_000]
    found = structure_of(default_model, text)
    assert len(found.scales) > 2
    check_nesting(found.segments, Span(1, found.tokens - 1))
    counts = []
    for level in range(len(found.scales)):
        spans = spans_at(level, found.segments)
        assert [spans[0].start, spans[-1].end] == [1, found.tokens - 1]
        assert all(one.end == other.start for one, other in pairwise(spans))
        counts.append(len(spans))
    assert counts[2] > counts[1] > counts[0] > 1


@pytest.mark.parametrize("text", ["a", "Hi there.", "   \n ", "x" * 3000, "word " * 400])
@pytest.mark.parametrize("scales", [None, [400], [400, 100]])
def test_texts_without_parts(
    default_model: EmbeddingModel, text: str, scales: list[int] | None
) -> None:
    found = structure_of(default_model, text, scales=scales)
    if found.tokens > 2:
        check_nesting(found.segments, Span(1, found.tokens - 1))
    else:
        assert found.segments == ()


@pytest.mark.parametrize("scales", [[], [15], [500, -1], [32] * 7])
def test_bad_scales(default_model: EmbeddingModel, scales: list[int]) -> None:
    with pytest.raises(InvalidInput) as raised:
        structure_of(default_model, "a text", scales=scales)
    assert raised.value.code == "invalid_scales"


@pytest.mark.parametrize("scale", [2**31, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_scale_beyond_the_text_is_the_whole_of_it(
    default_model: EmbeddingModel, scale: int
) -> None:
    found = structure_of(default_model, BREAD + STARS, scales=[scale, 16])
    assert found.scales == (scale, 16)
    assert found.segments == structure_of(default_model, BREAD + STARS, scales=[999, 16]).segments


def cache() -> ByteCache:
    return ByteCache(max_bytes=1 << 30, max_idle_s=60)


def test_breaks_before_tokens(default_model: EmbeddingModel) -> None:
    text = "One two. Three\nfour\n\nfive six? Seven"
    document = finish(open_document(text, default_model, cache()))
    words = default_model.tokenizer.tokens_of(document.ids)
    kinds = dict(zip(words, document.breaks.tolist(), strict=True))
    assert kinds["three"] == SENTENCE
    assert kinds["four"] == LINE
    assert kinds["five"] == PARAGRAPH
    assert kinds["seven"] == SENTENCE
    assert kinds["two"] == kinds["."] == kinds["one"] == 0
    assert finish(breaks_before(text, document.offsets)).tolist() == document.breaks.tolist()


def test_places_are_the_strongest_breaks_there_are_enough_of(
    default_model: EmbeddingModel,
) -> None:
    def places(text: str) -> int:
        return len(places_of(finish(open_document(text, default_model, cache()))))

    assert places("Some words here. " * 200) == 199
    assert places("\n\n".join(["Some words here. " * 3] * 50)) == 49
    assert places("word " * 400) == 12


@pytest.mark.parametrize("length", [1, 2, 16, 64, 802, 20_000, 10**6])
def test_usual_scales_are_few_and_descend(length: int) -> None:
    scales = usual_scales(length)
    assert 1 <= len(scales) <= 6
    assert all(one > other for one, other in pairwise(scales))
    assert all(scale >= 16 for scale in scales)


def test_depth_is_the_climb_to_the_peaks_on_both_sides() -> None:
    values = np.array([3.0, 1.0, 2.0, 5.0, 4.0, 4.0, 6.0])
    assert depths(values).tolist() == [0.0, 6.0, 3.0, 0.0, 3.0, 3.0, 0.0]


def test_boundaries_are_the_deepest_that_keep_their_distance() -> None:
    places = np.array([10, 20, 30, 60, 80])
    depth = np.array([1.0, 5.0, 4.0, 3.0, 0.0])
    content = Span(0, 100)
    assert choose_boundaries(places, depth, scale=50, content=content) == [20]
    assert choose_boundaries(places, depth, scale=25, content=content) == [20, 30, 60]
    assert choose_boundaries(places, depth, scale=44, content=content) == [20]
    found = choose_boundaries(places, depth, scale=25, content=content, given=[80])
    assert found == [20, 30, 80]
    assert choose_boundaries(places, depth, scale=1, content=content) == [10, 20, 30, 60]


def test_many_small_segments_take_no_quadratic_time() -> None:
    """The device does nothing else meanwhile."""
    content = Span(0, 500_000)
    places = np.arange(5, content.end, 8)
    depth = np.random.default_rng(0).random(len(places))
    began_at = perf_counter()
    found = choose_boundaries(places, depth, scale=16, content=content)
    assert len(found) == content.end // 16 - 1
    assert found == sorted(set(found))
    assert perf_counter() - began_at < 5


class Unwalked(list[int]):
    """Places that are looked up, and never walked through for each segment."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("all places of a level are walked through")


def test_segments_nest_without_walking_through_all_places(default_model: EmbeddingModel) -> None:
    count = 40
    offsets = np.stack([np.arange(count), np.arange(1, count + 1)], axis=1).astype(np.int32)
    document = OpenDocument(
        handle="doc-x",
        model=default_model,
        ids=np.zeros(count, np.int32),
        offsets=offsets,
        breaks=np.zeros(count, np.int8),
    )
    levels = [Unwalked(range(2, count, 4)), Unwalked(range(1, count))]
    segments = nested(document, Span(0, count), levels)
    assert [len(one.children) for one in segments[:3]] == [2, 4, 4]


@pytest.mark.parametrize(("length", "reach"), [(30, 8), (500, 70), (500, 2_000), (128, 64)])
def test_cohesion_is_the_cosine_of_the_means_on_both_sides(length: int, reach: int) -> None:
    states = torch.randn(length, 24, generator=torch.Generator().manual_seed(length)) + 0.5
    content = Span(1, length - 1)
    places = torch.arange(2, length - 1, 7)
    found = finish(cohesion(finish(sums_of(states)), places, [reach, 5], content))[0]
    expected = []
    for place in places.tolist():
        before = states[max(content.start, place - reach) : place].double().mean(0)
        after = states[place : min(content.end, place + reach)].double().mean(0)
        expected.append(float(torch.cosine_similarity(before, after, dim=0)))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)


def test_no_places_have_no_cohesion() -> None:
    sums = finish(sums_of(torch.ones(5, 16)))
    found = finish(cohesion(sums, torch.arange(0), [16, 8], Span(1, 4)))
    assert found.shape == (2, 0)


@pytest.mark.parametrize(
    ("first", "second"), [("# Ships\n\n", "# Bread\n\n"), ("SHIPS\n\n", "BREAD\n\n")]
)
def test_documents_divide_at_their_headings(
    default_model: EmbeddingModel, first: str, second: str
) -> None:
    """Where the subject changes within a section, the heading is still where the part begins."""
    text = f"{first}{SHIPS}\n\n{STARS}\n\n{second}{STARS}\n\n{BREAD}"
    found = structure_of(default_model, text, scales=[90])
    starts = {segment.characters.start: segment.begins for segment in found.segments}
    assert starts == {0: "heading", text.index(second): "heading"}


def test_parts_say_whether_vectors_decided(default_model: EmbeddingModel) -> None:
    found = structure_of(default_model, "\n\n".join([SHIPS, SHIPS, BREAD, BREAD]), scales=[80])
    begins = [segment.begins for segment in found.segments]
    assert begins == ["text"] + ["vectors"] * (len(begins) - 1)
    assert len(begins) > 1


def test_cohesion_of_passages_is_the_cosine_of_their_means_on_both_sides() -> None:
    vectors = np.random.default_rng(0).normal(size=(6, 5))
    edges = [1, 41, 81, 121, 161, 201, 241]  # passages of one weight
    found = cohesion_of_passages(vectors, edges, 80)
    for at in range(1, 6):
        before = vectors[max(at - 2, 0) : at].sum(0)
        after = vectors[at : at + 2].sum(0)
        cosine = before @ after / np.linalg.norm(before) / np.linalg.norm(after)
        assert found[at - 1] == pytest.approx(cosine)


def test_passages_are_read_as_texts_of_their_own(default_model: EmbeddingModel) -> None:
    cache = ByteCache(max_bytes=2**26, max_idle_s=60)
    document = finish(open_document(f"{SHIPS}\n\n{BREAD}", default_model, cache))
    [place] = places_of(document).tolist()
    found = finish(passage_vectors(document, [1, place, document.num_tokens - 1]))
    with Engine(default_model) as engine:
        np.testing.assert_allclose(found, engine.embed([SHIPS, BREAD]), atol=1e-5)
