"""The engine for servers: many callers, one device thread, every call answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pytest

from engine.async_engine import AsyncEngine
from engine.benchmarks.encoder import EncoderPlan, EncoderRow, encoder_rows
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import (
    DeadlineExceeded,
    EngineUnavailable,
    InsufficientMemory,
    InvalidInput,
    LLNError,
    ModelNotFound,
    QueueFull,
    TextTooLong,
)
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.scheduling.admission import MemoryBudget
from engine.scheduling.deadline import Deadline
from engine.scheduling.observer import EngineObserver
from engine.types import ChunkPlan, EmbedOptions

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint

Result = TypeVar("Result")


class Tally(EngineObserver):
    def __init__(self) -> None:
        self.rejections: list[str] = []
        self.num_accepted = 0
        self.num_tokenised = 0

    def rejected(self, *, reason: str) -> None:
        self.rejections.append(reason)

    def accepted(self, *, model: str, tokens: int) -> None:
        self.num_accepted += 1

    def tokenised(self, *, texts: int, tokens: int, seconds: float) -> None:
        self.num_tokenised += texts


def serve(
    models: dict[str, EmbeddingModel],
    work: Callable[[AsyncEngine], Awaitable[Result]],
    *,
    config: EngineConfig | None = None,
    observer: EngineObserver | None = None,
) -> Result:
    async def run() -> Result:
        engine = AsyncEngine(
            list(models.values()), config=config or EngineConfig(device="cpu"), observer=observer
        )
        async with engine:
            return await work(engine)

    return asyncio.run(run())


def test_states_of_a_model_that_does_not_pool_are_bounded(
    write_checkpoint: WriteCheckpoint,
) -> None:
    model = load_model(str(write_checkpoint("bert", pooling="none")))

    async def work(engine: AsyncEngine) -> None:
        [found] = await engine.embed(["the quick brown fox"])
        assert found.vector.ndim == 2
        with pytest.raises(TextTooLong) as caught:
            await engine.embed(["the quick brown fox"] * 12)
        assert (caught.value.code, caught.value.limit) == ("too_many_token_states", 40)

    config = EngineConfig(device="cpu", max_token_states=40)
    serve({"bare": model}, work, config=config)


@pytest.mark.parametrize("limit", [3, 5])
def test_a_model_that_does_not_pool_starts_with_room_for_few_states(
    limit: int, write_checkpoint: WriteCheckpoint
) -> None:
    model = load_model(str(write_checkpoint("bert", pooling="none")))

    async def work(engine: AsyncEngine) -> None:
        assert engine.ready
        [found] = await engine.embed(["fox"], options=EmbedOptions(truncate="end", max_tokens=3))
        assert len(found.vector) == 3
        with pytest.raises(TextTooLong) as caught:
            await engine.embed(["the quick brown fox jumps"])
        assert caught.value.limit == limit

    serve({"bare": model}, work, config=EngineConfig(device="cpu", max_token_states=limit))


def test_a_model_that_does_not_pool_needs_room_for_one_token(
    write_checkpoint: WriteCheckpoint, default_model: EmbeddingModel
) -> None:
    config = EngineConfig(device="cpu", max_token_states=2)
    bare = load_model(str(write_checkpoint("bert", pooling="none")))
    with pytest.raises(InvalidInput) as caught:
        AsyncEngine([default_model, bare], config=config)
    found = caught.value
    assert (found.param, found.limit, found.actual) == ("max_token_states", 3, 2)
    assert bare.name in str(found)


def test_many_callers_get_their_own_vectors(
    shipped_models: dict[str, EmbeddingModel],
    default_model: EmbeddingModel,
    real_texts: list[str],
) -> None:
    texts = real_texts[:60]

    async def work(engine: AsyncEngine) -> list[np.ndarray]:
        answers = await asyncio.gather(*(engine.embed([text]) for text in texts))
        return [answer[0].vector for answer in answers]

    found = np.stack(serve(shipped_models, work))
    np.testing.assert_allclose(found, Engine(default_model).embed(texts), atol=2e-6)


def test_documents_equal_those_of_the_plain_engine(
    shipped_models: dict[str, EmbeddingModel], default_model: EmbeddingModel, long_text: str
) -> None:
    text, plan = long_text[:20_000], ChunkPlan(tokens=200)
    served = serve(shipped_models, lambda engine: engine.embed_document(text, chunks=plan))
    plain = Engine(default_model).embed_document(text, chunks=plan)
    np.testing.assert_allclose(served.vector, plain.vector, atol=2e-6)
    assert [chunk.characters for chunk in served.chunks] == [c.characters for c in plain.chunks]
    assert served.accounting.compute_s > 0


def test_a_limit_below_the_length_of_a_sentence() -> None:
    config = EngineConfig(device="cpu", max_text_tokens=8)
    limited = load_model("default", config=config)
    found = serve({"default": limited}, lambda engine: engine.embed(["a text"]), config=config)
    assert found[0].accounting.tokens == 4


def test_models_by_name(shipped_models: dict[str, EmbeddingModel]) -> None:
    async def work(engine: AsyncEngine) -> None:
        assert engine.ready
        assert list(engine.models) == list(shipped_models)
        assert engine.resolve(None).attention == ("lln_diag",) * 6
        with pytest.raises(ModelNotFound) as caught:
            await engine.embed(["a text"], model="text-embedding-3-small")
        assert caught.value.actual == "text-embedding-3-small"

    serve(shipped_models, work)


def test_tokenizing(shipped_models: dict[str, EmbeddingModel]) -> None:
    found = serve(shipped_models, lambda engine: engine.tokenize("Café au lait"))
    assert found.tokens == ("[CLS]", "cafe", "au", "lai", "##t", "[SEP]")
    assert found.offsets[1] == (0, 4)


def test_refusals_are_counted_once(shipped_models: dict[str, EmbeddingModel]) -> None:
    tally = Tally()

    async def work(engine: AsyncEngine) -> None:
        for inputs, options in (
            ([""], EmbedOptions()),
            (["x"], EmbedOptions(dimensions=0)),
            ([[99_999_999]], EmbedOptions()),
        ):
            with pytest.raises(InvalidInput):
                await engine.embed(inputs, options=options)
        with pytest.raises(DeadlineExceeded):
            await engine.embed(["x"], timeout_s=0)

    serve(shipped_models, work, observer=tally)
    assert tally.rejections == [
        "empty_text",
        "invalid_dimensions",
        "invalid_token_id",
        "deadline_exceeded",
    ]


def test_a_full_queue_refuses_and_says_when_to_come_back(
    shipped_models: dict[str, EmbeddingModel], long_text: str
) -> None:
    config = EngineConfig(device="cpu", max_queue_tokens=3000)

    async def work(engine: AsyncEngine) -> list[object]:
        text = long_text[:8000]
        calls = [engine.embed([text]) for _ in range(12)]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    answers = serve(shipped_models, work, config=config)
    refused = [answer for answer in answers if isinstance(answer, QueueFull)]
    assert refused
    assert len(refused) < len(answers)
    assert refused[0].limit == 3000
    assert refused[0].retry_after_s is not None


def test_a_call_that_waits_for_room_is_tokenised_once(
    shipped_models: dict[str, EmbeddingModel], real_texts: list[str], long_text: str
) -> None:
    config, tally = EngineConfig(device="cpu", max_queue_tokens=200), Tally()
    num_canaries = len(shipped_models)

    async def work(engine: AsyncEngine) -> None:
        texts = [text[:400] for text in real_texts[:20]]
        calls = [engine.embed([text], wait_for_room=True) for text in texts]
        states = [engine.embed_tokens([text], wait_for_room=True) for text in texts[:5]]
        assert len(await asyncio.gather(*calls, *states)) == 25
        # One runs, one waits, and there is no room for a third in time.
        long_ones = [
            asyncio.create_task(engine.embed([long_text[:20_000]], wait_for_room=True))
            for _ in range(2)
        ]
        await asyncio.sleep(0.1)
        with pytest.raises(DeadlineExceeded):
            await engine.embed(["in a hurry " * 40], wait_for_room=True, timeout_s=0.05)
        await asyncio.gather(*long_ones)

    serve(shipped_models, work, config=config, observer=tally)
    assert tally.rejections == ["deadline_exceeded"]
    assert tally.num_tokenised == 25 + 3 + num_canaries


def test_the_first_stop_is_the_one_that_counts(
    shipped_models: dict[str, EmbeddingModel], long_text: str
) -> None:
    """Who has stopped the engine by a deadline of its own does not wait a second time."""
    config = EngineConfig(device="cpu", drain_timeout_s=60, min_sweep_tokens=1_000_000)
    tally = Tally()

    async def work(engine: AsyncEngine) -> tuple[AsyncEngine, float]:
        num_before = tally.num_accepted
        busy = asyncio.create_task(engine.embed([long_text[:20_000]]))
        while tally.num_accepted == num_before:
            await asyncio.sleep(0.01)
        await engine.stop(Deadline(0.05))
        with pytest.raises(EngineUnavailable, match=r"after 0\.05 s"):
            await busy
        return engine, time.monotonic()

    engine, stopped_at = serve(shipped_models, work, config=config, observer=tally)
    left_at = time.monotonic()
    assert left_at - stopped_at < 1
    while engine._worker.alive:  # the unit it was in, which nobody waits for
        assert time.monotonic() - left_at < 60
        time.sleep(0.05)


def test_one_bad_text_of_many_gives_the_others_up(
    shipped_models: dict[str, EmbeddingModel], real_texts: list[str]
) -> None:
    """The bad one is read after the first have been queued."""

    async def work(engine: AsyncEngine) -> None:
        with pytest.raises(InvalidInput) as caught:
            await engine.embed([*real_texts[:100], [99_999_999]])
        assert caught.value.param == "input[100]"
        assert len(await engine.embed(["still here"])) == 1

    serve(shipped_models, work)


def test_cancelling_and_deadlines_leave_the_engine_well(
    shipped_models: dict[str, EmbeddingModel], long_text: str
) -> None:
    async def work(engine: AsyncEngine) -> None:
        long_one = asyncio.create_task(engine.embed([long_text[:60_000]]))
        await asyncio.sleep(0.1)
        with pytest.raises(DeadlineExceeded):
            await engine.embed(["in a hurry"], timeout_s=0.0005)
        long_one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long_one
        assert len(await engine.embed(["still here"])) == 1
        assert engine.ready

    serve(shipped_models, work)


def test_stopping_answers_what_was_accepted(
    shipped_models: dict[str, EmbeddingModel], real_texts: list[str]
) -> None:
    async def work(engine: AsyncEngine) -> tuple[list[object], Exception | None]:
        calls = [asyncio.create_task(engine.embed([text])) for text in real_texts[:20]]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        stopping = asyncio.create_task(engine.stop(Deadline(60)))
        await asyncio.sleep(0)
        assert not engine.ready
        refusal = None
        try:
            await engine.embed(["too late"])
        except EngineUnavailable as error:
            refusal = error
        answers = await asyncio.gather(*calls, return_exceptions=True)
        await stopping
        return list(answers), refusal

    answers, refusal = serve(shipped_models, work)
    assert isinstance(refusal, EngineUnavailable)
    assert all(isinstance(answer, list | EngineUnavailable) for answer in answers)
    assert any(isinstance(answer, list) for answer in answers)


def test_diagnosis_of_some_layers_and_heads(
    shipped_models: dict[str, EmbeddingModel], long_text: str
) -> None:
    found = serve(
        shipped_models,
        lambda engine: engine.diagnose(long_text[:3000], layers=[0, 5], heads=[1, 2, 3]),
    )
    assert (found.layers, found.heads) == ((0, 5), (1, 2, 3))
    readings = {reading.instrument: reading for reading in found.instruments}
    assert {"temperature", "entropy", "spectral_gap"} <= set(readings)
    entropies = np.array(readings["entropy"].values)
    assert entropies.shape == (2, 3)
    assert (entropies > 0).all()
    assert (entropies < np.log(found.tokens)).all()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"layers": [6]}, "invalid_layers"),
        ({"heads": [-1]}, "invalid_heads"),
        ({"layers": []}, "invalid_layers"),
        ({"instruments": ["thermometer"]}, "unknown_instrument"),
    ],
    ids=str,
)
def test_diagnoses_that_are_refused(
    arguments: dict[str, list[int]], code: str, default_model: EmbeddingModel
) -> None:
    with pytest.raises(LLNError) as caught:
        Engine(default_model).diagnose("a text", **arguments)  # type: ignore[arg-type]
    assert caught.value.code == code


def test_a_benchmark_lets_texts_run_in_between(
    shipped_models: dict[str, EmbeddingModel],
) -> None:
    def rows_of(engine: AsyncEngine, *lengths: int) -> AsyncIterator[EncoderRow]:
        kinds = ["softmax", "lln_diag"]
        return engine.measure(
            lambda model: encoder_rows(EncoderPlan.checked(lengths, kinds, 2, model))
        )

    async def work(engine: AsyncEngine) -> None:
        async def measured() -> list[EncoderRow]:
            return [row async for row in rows_of(engine, 64, 300)]

        running = asyncio.create_task(measured())
        await engine.embed(["in between"])
        assert not running.done()
        rows = await running
        assert [(row.tokens, row.attention) for row in rows] == [
            (64, "softmax"),
            (64, "lln_diag"),
            (300, "softmax"),
            (300, "lln_diag"),
        ]
        assert all(row.tokens_per_s > 0 for row in rows)
        with pytest.raises(InvalidInput):
            await anext(rows_of(engine, 0))

    serve(shipped_models, work)


def test_a_call_larger_than_the_queue_goes_through_it_piece_by_piece(
    shipped_models: dict[str, EmbeddingModel],
) -> None:
    texts = [f"{number} some more words" for number in range(140)]
    config = EngineConfig(device="cpu", max_queue_tokens=100)
    found = serve(shipped_models, lambda engine: engine.embed(texts), config=config)
    assert len(found) == 140


def test_reading_counts_towards_every_deadline(shipped_models: dict[str, EmbeddingModel]) -> None:
    text = "many different words, read for a while " * 20_000
    calls: list[Callable[[AsyncEngine], Awaitable[object]]] = [
        lambda engine: engine.embed_document(text, timeout_s=0.03),
        lambda engine: engine.diagnose(text, timeout_s=0.03),
        lambda engine: engine.structure(text, timeout_s=0.03),
        lambda engine: engine.tokenize(text, timeout_s=0.03),
        lambda engine: engine.plan(text=text, timeout_s=0.03),
    ]

    async def work(engine: AsyncEngine) -> None:
        for call in calls:
            started_at = asyncio.get_running_loop().time()
            with pytest.raises(DeadlineExceeded) as caught:
                await call(engine)
            assert caught.value.limit == 0.03
            assert asyncio.get_running_loop().time() - started_at < 1.5

    serve(shipped_models, work)


def test_what_a_diagnosis_holds_has_to_fit_in_memory(
    shipped_models: dict[str, EmbeddingModel],
) -> None:
    config = EngineConfig(device="cpu", max_sweep_bytes=16 << 20)

    async def work(engine: AsyncEngine) -> None:
        with pytest.raises(InsufficientMemory) as caught:
            await engine.diagnose("a few words " * 1_000)
        assert caught.value.limit == 16 << 20
        both = [engine.diagnose("a few words " * 60, layers=[0]) for _ in range(2)]
        assert len(await asyncio.gather(*both)) == 2

    serve(shipped_models, work, config=config)


def test_work_begins_in_order_as_memory_allows() -> None:
    began: list[int] = []

    async def work(room: MemoryBudget, number: int, num_bytes: int) -> None:
        async with room.reserve(num_bytes):
            began.append(number)
            await asyncio.sleep(0.01)

    async def run() -> None:
        room = MemoryBudget(10)
        sizes = [50, 6, 6, 3]
        await asyncio.gather(*(work(room, number, size) for number, size in enumerate(sizes)))
        async with room.reserve(10):
            assert began == [0, 1, 2, 3]

    asyncio.run(run())
