"""Vectors: equal to sentence-transformers', and the same whatever else is in the batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import InvalidInput, LLNError, TextTooLong
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.platform.device import cpu_multiplies_bfloat16
from engine.types import ChunkPlan, EmbedOptions, Span, Truncate
from tests.engine.conftest import first_layers
from tests.engine.precisions import BFLOAT16, INT8_FORMS, needs_bfloat16

Vectors: TypeAlias = NDArray[np.float32]


@pytest.fixture(scope="module")
def engine(default_model: EmbeddingModel, cpu_config: EngineConfig) -> Engine:
    return Engine(default_model, config=cpu_config)


@pytest.fixture(scope="module")
def loaded(engine: Engine) -> Callable[[str, str], Engine]:
    """A model in a precision, which is loaded once."""

    @cache
    def load(model: str, dtype: str) -> Engine:
        if (model, dtype) == ("default", "float32"):
            return engine
        return Engine.load(model, config=EngineConfig(device="cpu", dtype=dtype))

    return load


@pytest.fixture(scope="module")
def published(published_model: EmbeddingModel, cpu_config: EngineConfig) -> Engine:
    return Engine(published_model, config=cpu_config)


@pytest.mark.parametrize("count", [20, pytest.param(500, marks=pytest.mark.slow)])
def test_softmax_equals_sentence_transformers(
    published: Engine, real_texts: list[str], count: int
) -> None:
    from sentence_transformers import SentenceTransformer

    texts = real_texts[:: len(real_texts) // count]
    yardstick = SentenceTransformer(str(published.model.checkpoint.folder), device="cpu")
    yardstick.max_seq_length = 512
    embedded = published.embed_each(texts)
    counts = [item.accounting.tokens for item in embedded]
    assert min(counts) <= 3
    assert max(counts) > 400
    fits = [at for at, count in enumerate(counts) if count <= 512]
    theirs = yardstick.encode([texts[at] for at in fits], batch_size=4)  # little padding
    cosines = (np.stack([embedded[at].vector for at in fits]) * theirs).sum(1)
    assert cosines.min() > 0.99999


@pytest.mark.parametrize("model", ["default", "sentence-transformers/all-MiniLM-L6-v2"])
def test_same_text_same_vector(
    model: str,
    shipped_models: dict[str, EmbeddingModel],
    cpu_config: EngineConfig,
    real_texts: list[str],
) -> None:
    engine = Engine(shipped_models[model], config=cpu_config)
    lengths = [item.num_tokens for item in engine.model.tokenizer.encode_batch(real_texts)]
    some = [int(np.argmax(lengths)), 30]
    alone = np.stack([engine.embed([real_texts[index]])[0] for index in some])
    shuffled = random.Random(4)
    for row, index in enumerate(some):
        batch = [index, *shuffled.sample(range(len(real_texts)), 7)]
        shuffled.shuffle(batch)
        found = engine.embed([real_texts[at] for at in batch])[batch.index(index)]
        np.testing.assert_array_equal(found, alone[row])


@pytest.mark.parametrize("model", ["default", "sentence-transformers/all-MiniLM-L6-v2"])
@pytest.mark.parametrize("dtype", ["float32", BFLOAT16, *INT8_FORMS])
def test_a_batch_moves_no_text_in_its_last_bit(
    model: str,
    dtype: str,
    long_text: str,
    shipped_models: dict[str, EmbeddingModel],
    tmp_path: Path,
) -> None:
    """Whatever lengths meet: one token, a row beyond a tile, several blocks, a sweep.

    In two layers: what one moves, the next reads.
    """
    config = EngineConfig(device="cpu", dtype=dtype)
    engine = Engine(first_layers(shipped_models[model], tmp_path / "model", config), config=config)
    assert engine.info.dtype == dtype
    ids = engine.model.tokenizer.encode_batch([long_text[:20_000]])[0].ids
    lengths = [1, 2, 1025, 17, 511, 700, 64, 63, 2100 if model == "default" else 512, 300, 1]
    texts = [ids[100 * at : 100 * at + length].tolist() for at, length in enumerate(lengths)]
    assert [len(text) for text in texts] == lengths
    together = engine.embed(texts)
    order = [*range(0, len(texts), 3)][::-1]
    np.testing.assert_array_equal(engine.embed([texts[at] for at in order]), together[order])
    for at, text in enumerate(texts):
        np.testing.assert_array_equal(engine.embed([text])[0], together[at])


@needs_bfloat16
def test_bfloat16_products_on_a_cpu_move_vectors_by_little(
    engine: Engine,
    real_texts: list[str],
    long_text: str,
    loaded: Callable[[str, str], Engine],
) -> None:
    narrow = loaded("default", "bfloat16")
    assert narrow.info.dtype == "bfloat16"
    texts = [*real_texts[:20], long_text[:6_000]]
    cosines = (engine.embed(texts) * narrow.embed(texts)).sum(1)
    assert cosines.min() > 0.9999
    assert cosines.min() < 1 - 1e-7, "the products were float32's"
    chunks = narrow.embed_document(long_text[:3_000], chunks=ChunkPlan(tokens=256)).chunks
    assert len(chunks) > 1
    assert narrow.diagnose(long_text[:2_000], layers=[5], heads=[0, 11]).instruments


@pytest.fixture(scope="module")
def passages(real_texts: list[str], long_text: str) -> list[str]:
    return [*sorted(real_texts, key=len)[-25::8], long_text[:3_000]]


@pytest.fixture(scope="module")
def words(real_texts: list[str]) -> list[str]:
    return real_texts[:20]


@pytest.fixture(scope="module")
def float32_vectors(
    loaded: Callable[[str, str], Engine], passages: list[str], words: list[str]
) -> Callable[[str], tuple[Vectors, Vectors]]:
    """Of passages and words by a model, which is read once for all precisions."""

    @cache
    def read(model: str) -> tuple[Vectors, Vectors]:
        wide = loaded(model, "float32")
        return wide.embed(passages), wide.embed(words)

    return read


@pytest.mark.long
@pytest.mark.parametrize("precision", INT8_FORMS)
@pytest.mark.parametrize("model", ["default", "documents"])
def test_int8_keeps_the_mean_cosine_above_three_nines(
    model: str,
    precision: str,
    passages: list[str],
    words: list[str],
    float32_vectors: Callable[[str], tuple[Vectors, Vectors]],
    long_text: str,
    loaded: Callable[[str, str], Engine],
) -> None:
    of_passages, of_words = float32_vectors(model)
    narrow = loaded(model, precision)
    assert narrow.info.dtype == precision
    cosines = (of_passages * narrow.embed(passages)).sum(1)
    assert cosines.mean() > 0.999
    cosines = np.append(cosines, (of_words * narrow.embed(words)).sum(1))
    assert 0.99 < cosines.min() < 1 - 1e-6
    if model == "default":
        chunks = narrow.embed_document(long_text[:3_000], chunks=ChunkPlan(tokens=256)).chunks
        assert len(chunks) > 1
        assert narrow.diagnose(long_text[:1_000], layers=[0], heads=[3]).instruments


@pytest.mark.parametrize(
    ("dtype", "limit"),
    [
        ("float16", "float32, bfloat16 or int8 on a CPU"),
        pytest.param(
            "bfloat16",
            "float32 on this CPU, which has no units for bfloat16",
            marks=pytest.mark.skipif(cpu_multiplies_bfloat16(), reason="it has them"),
        ),
    ],
)
def test_a_dtype_that_the_cpu_cannot_use_is_refused(dtype: str, limit: str) -> None:
    with pytest.raises(InvalidInput, match=dtype) as refused:
        Engine.load(config=EngineConfig(device="cpu", dtype=dtype))
    assert (refused.value.param, refused.value.limit) == ("dtype", limit)


def test_a_text_of_one_block_is_exactly_the_published_one(
    engine: Engine, published: Engine, real_texts: list[str]
) -> None:
    short = [text for text in real_texts if len(text) < 300][:20]
    np.testing.assert_allclose(engine.embed(short), published.embed(short), atol=2e-6)


def test_documents_stays_close_to_the_published_model(
    published: Engine, real_texts: list[str], loaded: Callable[[str, str], Engine]
) -> None:
    """The other LLN+Diag model that ships: trained whole, so that short texts move a little."""
    documents = loaded("documents", "float32")
    assert documents.info.revision == published.info.revision
    assert documents.info.calibration not in (None, published.info.calibration)
    texts = real_texts[-30:]
    cosines = (documents.embed(texts) * published.embed(texts)).sum(1)
    assert cosines.mean() > 0.99
    assert cosines.max() < 0.99999, "training moved it"


def test_longer_texts_stay_close_to_the_published_model(
    engine: Engine, published: Engine, real_texts: list[str]
) -> None:
    longest = sorted(real_texts, key=len)[-3:]
    cosines = (engine.embed(longest) * published.embed(longest)).sum(1)
    assert cosines.mean() > 0.96
    assert cosines.min() < 0.9999, "none was longer than a block"


def test_vectors_are_unit_and_float32(engine: Engine) -> None:
    vectors = engine.embed(["a text", "another one"])
    assert vectors.dtype == np.float32
    assert vectors.shape == (2, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_dimensions_cut_then_normalise(engine: Engine) -> None:
    (whole,) = engine.embed(["a text"])
    (cut,) = engine.embed(["a text"], options=EmbedOptions(dimensions=100))
    np.testing.assert_allclose(cut, whole[:100] / np.linalg.norm(whole[:100]), atol=1e-6)


def test_not_normalised_on_request(engine: Engine) -> None:
    (raw,) = engine.embed(["a text"], options=EmbedOptions(normalize=False))
    (unit,) = engine.embed(["a text"])
    assert abs(np.linalg.norm(raw) - 1) > 0.01
    np.testing.assert_allclose(raw / np.linalg.norm(raw), unit, atol=1e-6)


def test_token_ids_give_the_texts_vector(engine: Engine) -> None:
    encoded = engine.model.tokenizer.encode_batch(["a text of some words"])[0]
    content = encoded.ids[1:-1].tolist()
    by_text, by_ids, by_all_ids = engine.embed(
        ["a text of some words", content, encoded.ids.tolist()]
    )
    np.testing.assert_allclose(by_ids, by_text, atol=1e-6)
    np.testing.assert_allclose(by_all_ids, by_text, atol=1e-6)


def test_a_document_of_several_tiles(
    shallow_model: EmbeddingModel, cpu_config: EngineConfig, long_text: str
) -> None:
    engine = Engine(shallow_model, config=cpu_config)
    document = long_text[:20_000]
    found = engine.embed_document(
        document, chunks=ChunkPlan(tokens=512, overlap=64, context="late")
    )
    assert found.tokens > 4_096, "its blocks are the shorter ones"
    assert found.accounting.tokens_embedded == found.tokens
    assert np.linalg.norm(found.vector) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(found.vector, engine.embed([document])[0], atol=2e-6)
    covered = np.zeros(len(document), dtype=bool)
    for chunk in found.chunks:
        covered[slice(*chunk.characters)] = True
        assert np.linalg.norm(chunk.vector) == pytest.approx(1, abs=1e-5)
    uncovered = [letter for letter, seen in zip(document, covered, strict=True) if not seen]
    assert not "".join(uncovered).strip()


def test_chunks_have_seen_the_whole_document(engine: Engine, long_text: str) -> None:
    """The same passage in two documents: independent chunks would be equal, late ones differ."""
    passage, before = long_text[50_000:50_900], long_text[:3_000]
    plan = ChunkPlan(tokens=150, context="late")
    after_manual = engine.embed_document(before + passage, chunks=plan)
    after_other = engine.embed_document("A recipe. " * 300 + passage, chunks=plan)
    last, other = after_manual.chunks[-1], after_other.chunks[-1]
    assert float(last.vector @ other.vector) < 0.999


@pytest.mark.parametrize("side", ["start", "end"])
def test_truncation_says_what_was_dropped(
    side: Truncate, default_model: EmbeddingModel, long_text: str
) -> None:
    config = EngineConfig(device="cpu", max_text_tokens=100, max_softmax_text_tokens=50)
    engine = Engine(load_model("default", config=config), config=config)
    text = long_text[:2000]
    with pytest.raises(TextTooLong) as caught:
        engine.embed([text])
    assert (caught.value.limit, caught.value.param) == (100, "input[0]")
    (item,) = engine.embed_each([text], options=EmbedOptions(truncate=side))
    accounting = item.accounting
    assert accounting.tokens == caught.value.actual
    assert accounting.tokens_embedded == 100
    assert accounting.dropped is not None
    kept = text[: accounting.dropped.start] + text[accounting.dropped.end :]
    (again,) = engine.embed_each([kept])
    assert again.accounting.tokens == 100
    np.testing.assert_allclose(item.vector, again.vector, atol=1e-6)


@pytest.mark.parametrize(
    ("inputs", "code", "param"),
    [
        ([], "empty_input", "input"),
        (["fine", ""], "empty_text", "input[1]"),
        (["fine", []], "empty_text", "input[1]"),
        (["x"] * 3000, "too_many_inputs", "input"),
        ([3], "invalid_type", "input[0]"),
        ([b"bytes"], "invalid_type", "input[0]"),
        (["a\ud800b"], "invalid_unicode", "input[0]"),
        ([[5, 99_999_999]], "invalid_token_id", "input[0]"),
        ([[5, -1]], "invalid_token_id", "input[0]"),
        ([["a"]], "invalid_token_id", "input[0]"),
        ("a string", "invalid_type", None),
        (None, "invalid_type", None),
        (iter(["a"]), "invalid_type", None),
        ({"a": 1}, "invalid_type", None),
    ],
    ids=lambda value: str(value)[:24].encode("ascii", "replace").decode(),
)
def test_inputs_that_are_refused(
    inputs: list[str], code: str, param: str | None, engine: Engine
) -> None:
    with pytest.raises(InvalidInput) as caught:
        engine.embed(inputs)
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize("text", [b"bytes", [101, 102], None, 7], ids=str)
def test_a_document_is_a_string(text: Any, engine: Engine) -> None:
    with pytest.raises(InvalidInput, match=f"text must be a string, got {type(text).__name__}"):
        engine.embed_document(text)


@pytest.mark.parametrize(
    ("ids", "stranger"),
    [
        ([5, "a"], "'a' at position 1"),
        ([5, 1.5, 7], "1.5 at position 1"),
        ([None], "null at position 0"),
        ([7, True], "true at position 1"),
        ([5, 2**70], f"{2**70} at position 1"),
        ([5, [6]], "a list at position 1"),
    ],
    ids=str,
)
def test_what_is_no_token_id_is_named(ids: Any, stranger: str, engine: Engine) -> None:
    with pytest.raises(InvalidInput) as caught:
        engine.embed([ids])
    assert caught.value.message.endswith(f"of at most 64 bits, got {stranger}")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (EmbedOptions(dimensions=0), "invalid_dimensions"),
        (EmbedOptions(dimensions=385), "invalid_dimensions"),
        (EmbedOptions(prompt_name="query"), "unknown_prompt"),
        (EmbedOptions(truncate="middle"), "invalid_truncate"),  # type: ignore[arg-type]
        (EmbedOptions(priority="first"), "invalid_priority"),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_options_that_are_refused(options: EmbedOptions, code: str, engine: Engine) -> None:
    with pytest.raises(InvalidInput) as caught:
        engine.embed(["a text"], options=options)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "text", [" ", "\n\t", "\0", "👩‍👩‍👧", "e\u0301", "שלום עולם", "word" * 5000]
)
def test_unusual_texts_have_vectors(text: str, engine: Engine) -> None:
    document = engine.embed_document(text, chunks=ChunkPlan(tokens=16))
    assert np.isfinite(document.vector).all()
    assert all(
        0 <= chunk.characters.start <= chunk.characters.end <= len(text)
        for chunk in document.chunks
    )
    assert all(isinstance(chunk.characters, Span) for chunk in document.chunks)


def test_unknown_models_and_attentions(cpu_config: EngineConfig) -> None:
    with pytest.raises(InvalidInput, match="unknown attention 'hyperbolic'"):
        load_model("default", attention="hyperbolic", config=cpu_config)
    with pytest.raises(LLNError, match="no/such-model"):
        load_model("no/such-model", config=cpu_config)


def test_attention_by_layer(cpu_config: EngineConfig) -> None:
    kinds = ("softmax", "lln", "lln_diag", "block_diagonal", "lln_diag", "softmax")
    with Engine.load("default", attention=kinds, device="cpu") as engine:
        assert engine.info.attention == kinds
        assert engine.info.max_tokens == cpu_config.max_softmax_text_tokens
        assert np.isfinite(engine.embed(["a text"])).all()
