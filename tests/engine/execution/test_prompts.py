"""A prompt before the text, wherever the text is read."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise, starmap
from typing import TYPE_CHECKING

import numpy as np
import pytest

from engine.analysis.cache import ByteCache
from engine.analysis.open_document import open_document
from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.errors import TextTooLong
from engine.execution.documents import prepare_document
from engine.execution.inputs import lengths_alone, prepare, texts_alone
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.steps import finish
from engine.text.chunking import OPENING_TOKENS
from engine.types import ChunkPlan, EmbedOptions, Span, SpanPlan

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

CPU = EngineConfig(device="cpu")
DEFAULTS = EmbedOptions()
TEXT = "the quick brown fox jumps over the lazy dog and goes home "


def with_prompt(model: EmbeddingModel, prompt: str) -> EmbeddingModel:
    """The same model as if it put this before each text unless told otherwise."""
    checkpoint = replace(
        model.checkpoint, prompts={"document": prompt}, default_prompt_name="document"
    )
    return replace(model, parts=replace(model.parts, checkpoint=checkpoint))


def with_limit(model: EmbeddingModel, max_tokens: int) -> EmbeddingModel:
    return replace(model, info=replace(model.info, max_tokens=max_tokens))


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert"])
@pytest.mark.parametrize("prompt", ["the: ", "the", "the quick "])
def test_a_passage_read_alone_is_the_text_that_would_be_embedded(
    family: str, prompt: str, write_checkpoint: WriteCheckpoint
) -> None:
    model = with_prompt(load_model(str(write_checkpoint(family)), config=CPU), prompt)
    text = "brown fox jumps over the lazy dog"
    cuts = [0, len("brown fox"), len("brown fox jumps over"), len(text)]
    spans = tuple(starmap(Span, pairwise(cuts)))
    document = prepare_document(
        text, model, DEFAULTS, SpanPlan(spans=spans, context="late", alone=0.5)
    )
    alone = [one.ids.tolist() for one in texts_alone(document, model.tokenizer)]
    assert lengths_alone(document, model.tokenizer) == list(map(len, alone))
    [first, *_] = prepare([text[slice(*spans[0])]], model, DEFAULTS)
    assert alone[0] == first.ids.tolist()
    prefix = model.tokenizer.num_prefix + document.num_prompt
    assert all(ids[:prefix] == document.ids[:prefix].tolist() for ids in alone)


def test_an_opening_is_the_documents_own_behind_a_long_prompt(
    default_model: EmbeddingModel,
) -> None:
    model = with_prompt(default_model, "the quick brown fox " * 20)
    plan = ChunkPlan(tokens=16, context="late", opening=1.0)
    begin = []
    for text in ("one text " * 40, "another story " * 40):
        document = prepare_document(text, model, DEFAULTS, plan)
        start, end = document.spans[1]
        assert (start, end) == (0, document.num_prompt + OPENING_TOKENS)
        begin.append(document.ids[start:end])
    assert document.num_prompt > OPENING_TOKENS
    first, second = begin
    assert not np.array_equal(first, second)


def test_plans_diagnoses_and_open_documents_read_it_too(default_model: EmbeddingModel) -> None:
    model = with_prompt(default_model, "search for this: ")
    [embedded] = prepare([TEXT], model, DEFAULTS)
    opened = finish(open_document(TEXT, model, ByteCache(max_bytes=1 << 20, max_idle_s=60)))
    assert opened.ids.tolist() == embedded.ids.tolist()
    words = [opened.characters_of(token) for token in range(opened.num_tokens)]
    [first, *_] = [span for span in words if span is not None]
    assert TEXT[slice(*first)] == "the"

    async def scenario() -> tuple[int, int, int]:
        async with AsyncEngine([model], config=CPU) as engine:
            handle = (await engine.keep_open(TEXT)).handle
            by_text = await engine.diagnose(TEXT, layers=[0], instruments=["entropy"])
            by_handle = await engine.diagnose(document=handle, layers=[0], instruments=["entropy"])
            assert by_text.instruments[0].values == by_handle.instruments[0].values
            return by_text.tokens, by_handle.tokens, (await engine.plan(text=TEXT)).tokens

    assert set(asyncio.run(scenario())) == {embedded.num_tokens}


def test_a_text_that_only_its_prompt_makes_too_long_is_refused(
    default_model: EmbeddingModel,
) -> None:
    [bare] = prepare([TEXT], default_model, DEFAULTS)
    model = with_limit(with_prompt(default_model, "search for this: "), bare.num_tokens)
    with pytest.raises(TextTooLong):
        finish(open_document(TEXT, model, ByteCache(max_bytes=1 << 20, max_idle_s=60)))
