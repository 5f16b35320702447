"""Tokenising for many callers at once: who waits for whom, who leaves, and what is refused."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any

import pytest

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.errors import DeadlineExceeded, EngineUnavailable, QueueFull, TextTooLong
from engine.execution.documents import prepare_document_steps
from engine.execution.inputs import prepare, prepare_steps
from engine.execution.tokenizer_pool import SHORT_CHARACTERS, TokenizerPool
from engine.model.embedding_model import EmbeddingModel
from engine.steps import Steps, one_step
from engine.text.streaming import READ_CHARACTERS
from engine.types import ChunkPlan, EmbedOptions, SentencePlan
from tests.engine.serving import serve

LONG = SHORT_CHARACTERS + 1
OPTIONS = EmbedOptions()


@contextmanager
def open_pool(max_characters: int = 10 * LONG) -> Iterator[TokenizerPool]:
    pool = TokenizerPool(max_characters=max_characters)
    try:
        yield pool
    finally:
        pool.close()


def count_to(end: int, counted: list[int], pause: threading.Event | None = None) -> Steps[str]:
    for number in range(end):
        if pause is not None:
            assert pause.wait(20)
        counted.append(number)
        yield
    return "done"


def test_steps_run_to_their_answer() -> None:
    async def run() -> None:
        counted: list[int] = []
        with open_pool() as pool:
            assert await pool.run(count_to(5, counted), characters=LONG) == "done"
            assert await pool.run(one_step(lambda: 3), characters=LONG) == 3
        assert counted == [0, 1, 2, 3, 4]

    asyncio.run(run())


def test_tiny_work_needs_no_thread() -> None:
    async def run() -> None:
        ran_on: list[str] = []
        with open_pool() as pool:
            for characters in (256, 257):
                note = one_step(lambda: ran_on.append(threading.current_thread().name))
                await pool.run(note, characters=characters)
        assert ran_on[0] == threading.current_thread().name
        assert ran_on[1].startswith("lln-tokenizer")

    asyncio.run(run())


@pytest.mark.parametrize(("characters", "is_quick"), [(SHORT_CHARACTERS, False), (LONG, True)])
def test_threads_take_turns_more_often_beside_long_work(characters: int, is_quick: bool) -> None:
    usual = sys.getswitchinterval()
    with open_pool() as pool:
        steps = one_step(sys.getswitchinterval)
        assert (asyncio.run(pool.run(steps, characters=characters)) < usual) is is_quick
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_short_work_runs_while_every_thread_of_long_work_is_busy() -> None:
    async def run() -> None:
        let_go = threading.Event()
        with open_pool() as pool:
            waiting = [
                asyncio.create_task(pool.run(count_to(1, [], let_go), characters=LONG))
                for _ in range(6)
            ]
            await asyncio.sleep(0.05)
            assert await pool.run(one_step(lambda: 3), characters=SHORT_CHARACTERS) == 3
            assert not any(task.done() for task in waiting)
            let_go.set()
            assert await asyncio.gather(*waiting) == ["done"] * 6

    asyncio.run(run())


def test_long_texts_are_read_side_by_side() -> None:
    """The second of two long texts is read while the first one is, and ends long before it."""

    async def run() -> None:
        first: list[int] = []
        with open_pool() as pool:
            longest = asyncio.create_task(pool.run(count_to(5_000, first), characters=LONG))
            await asyncio.sleep(0)
            await pool.run(count_to(5, []), characters=LONG)
            assert len(first) < 1_000
            longest.cancel()

    asyncio.run(run())


def test_no_step_runs_after_the_caller_has_left() -> None:
    async def run() -> None:
        counted: list[int] = []
        with open_pool(max_characters=LONG) as pool:
            leaving = asyncio.create_task(pool.run(count_to(100_000, counted), characters=LONG))
            while not counted:
                await asyncio.sleep(0.001)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            await pool.run(count_to(5, []), characters=LONG)  # what has left takes no room
            after = len(counted)
            await asyncio.sleep(0.05)
            assert len(counted) == after < 100_000

    asyncio.run(run())


def test_a_full_pool_refuses_and_says_when_to_come_back() -> None:
    async def run() -> None:
        let_go = threading.Event()
        with open_pool(max_characters=LONG + 10) as pool:
            waiting = asyncio.create_task(
                pool.run(count_to(1, [], let_go), characters=2 * LONG)
            )  # more than the limit, but the pool was empty
            await asyncio.sleep(0.01)
            with pytest.raises(QueueFull, match="characters wait to be tokenised") as caught:
                await pool.run(one_step(lambda: 1), characters=11)
            assert (caught.value.limit, caught.value.actual) == (LONG + 10, 2 * LONG + 11)
            assert caught.value.retry_after_s is not None
            assert caught.value.retry_after_s > 0
            admitted = pool.run(one_step(lambda: 1), characters=11, is_admitted=True)
            assert await admitted == 1
            let_go.set()
            await waiting
            assert await pool.run(one_step(lambda: 1), characters=11) == 1

    asyncio.run(run())


def test_a_closed_pool_refuses_what_is_left() -> None:
    async def run() -> None:
        let_go = threading.Event()
        with open_pool() as pool:
            waiting = asyncio.create_task(pool.run(count_to(9, [], let_go), characters=LONG))
            await asyncio.sleep(0.01)
            pool.close()
            let_go.set()
            with pytest.raises(EngineUnavailable, match="has stopped"):
                await waiting
            with pytest.raises(EngineUnavailable, match="has stopped"):
                await pool.run(one_step(lambda: 1), characters=1)

    asyncio.run(run())


@pytest.mark.parametrize("plan", [None, ChunkPlan(), SentencePlan()])
def test_a_document_is_read_no_further_than_its_limit(
    published_model: EmbeddingModel, plan: ChunkPlan | SentencePlan | None
) -> None:
    limit = published_model.info.max_tokens
    steps = prepare_document_steps("ab " * 5_000_000, published_model, OPTIONS, plan)
    assert _steps_until_refusal(steps, limit) <= 3 * limit // READ_CHARACTERS + 2


def test_a_text_is_read_no_further_than_its_limit(published_model: EmbeddingModel) -> None:
    limit = published_model.info.max_tokens
    texts = ["short", "ab " * 5_000_000, "never read"]
    steps = prepare_steps(texts, published_model, OPTIONS, first_index=64)
    # One step is for the short texts.
    assert _steps_until_refusal(steps, limit, "input[65]") <= 3 * limit // READ_CHARACTERS + 3


def _steps_until_refusal(steps: Steps[object], limit: int, param: str = "text") -> int:
    counted: list[None] = []
    with pytest.raises(TextTooLong, match=f"more than {limit} tokens") as caught:
        counted.extend(steps)
    assert (caught.value.param, caught.value.limit) == (param, limit)
    return len(counted)


def test_short_texts_do_not_wait_for_huge_ones_whose_callers_stay_or_leave(
    default_model: EmbeddingModel,
) -> None:
    model = replace(default_model, info=replace(default_model.info, max_tokens=150_000))
    huge = "ab " * 600_000  # four times the limit

    async def work(engine: AsyncEngine) -> None:
        async def refused() -> None:
            with pytest.raises(TextTooLong):
                await engine.embed([huge])

        async def late() -> None:
            with pytest.raises(DeadlineExceeded):
                await engine.embed_document(huge, timeout_s=0.1)

        started_at = perf_counter()
        staying = [asyncio.create_task(refused()) for _ in range(3)]
        passing = [asyncio.create_task(late()) for _ in range(3)]
        leaving = [asyncio.create_task(engine.plan(text=huge)) for _ in range(3)]
        await asyncio.sleep(0.1)
        begun_at = perf_counter()
        await engine.embed(["A short text."])
        short_s = perf_counter() - begun_at
        for task in leaving:
            task.cancel()
        await asyncio.gather(*staying, *passing)
        all_s = perf_counter() - started_at
        assert short_s < 0.5 * all_s

    serve([model], work)


def test_tokens_of_a_text_beyond_the_limit_are_refused(default_model: EmbeddingModel) -> None:
    config = EngineConfig(device="cpu", max_text_tokens=100_000)

    async def run() -> None:
        async with AsyncEngine([default_model], config=config) as engine:
            assert len((await engine.tokenize("ab " * 50_000)).ids) == 50_002
            for words in (100_000, 1_000_000):
                with pytest.raises(TextTooLong, match="more than 100000 tokens"):
                    await engine.tokenize("ab " * words)
            assert (await engine.plan(text="ab " * 200_000)).tokens == 200_002

    asyncio.run(run())


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="the system has no such priorities")
@pytest.mark.parametrize("characters", [SHORT_CHARACTERS, SHORT_CHARACTERS + 1])
def test_no_thread_that_needs_the_interpreter_has_a_lower_priority(characters: int) -> None:
    """The system may put such a thread aside for long, and all others wait for its lock."""

    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    async def run() -> int:
        with open_pool(2 * characters) as pool:
            return await pool.run(one_step(priority), characters=characters)

    assert asyncio.run(run()) == os.getpriority(os.PRIO_PROCESS, 0)


class UnreadIds(Sequence[int]):
    """So many that reading them would take long."""

    def __len__(self) -> int:
        return 16_000_000

    def __getitem__(self, place: Any) -> Any:
        raise AssertionError("nobody should read them")


def test_too_many_token_ids_are_refused_unread(published_model: EmbeddingModel) -> None:
    with pytest.raises(TextTooLong, match="16000000 tokens"):
        prepare([UnreadIds()], published_model, EmbedOptions())
