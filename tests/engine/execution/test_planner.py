"""What texts cost, which way they run, and who is let in."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.errors import DeadlineExceeded, InsufficientMemory, InvalidInput, LLNError
from engine.execution.cost_model import price_of
from engine.execution.planner import Pace, Planner
from engine.model.embedding_model import EmbeddingModel, load_model
from engine.model.tiled_pass import TiledPass
from engine.platform.memory import free_bytes, is_out_of_memory, watch_peak
from engine.scheduling.deadline import Deadline
from tests.engine.bridge import Notes

CPU = torch.device("cpu")
GIGABYTE = 1 << 30


@pytest.fixture
def planner() -> Planner:
    return Planner(EngineConfig(device="cpu", max_sweep_bytes=100 * GIGABYTE), CPU)


def test_the_path_depends_on_length_and_attention(
    planner: Planner, default_model: EmbeddingModel, published_model: EmbeddingModel
) -> None:
    short, long = (planner.plan(default_model, tokens) for tokens in (1_023, 2_048))
    assert (short.path, short.tiles, short.tile_tokens) == ("packed", 1, 1_023)
    assert planner.plan(default_model, 1_024).path == "swept"
    assert (long.path, long.tiles, long.tile_tokens) == ("swept", 2, 1_024)
    assert planner.plan(published_model, 60_000).path == "packed"
    assert all(plan.fits for plan in (short, long))


def test_bytes_and_seconds_grow_as_they_should(
    planner: Planner, default_model: EmbeddingModel, published_model: EmbeddingModel
) -> None:
    lengths = [1, 1_000, 10_000, 100_000, 1_000_000]
    plans = [planner.plan(default_model, tokens) for tokens in lengths]
    for one, other in pairwise(plans):
        assert one.seconds < other.seconds
        assert one.bytes < other.bytes
    assert plans[4].seconds / plans[3].seconds == pytest.approx(10, rel=0.01)
    softmax = [planner.plan(published_model, tokens).seconds for tokens in (6_000, 60_000)]
    assert softmax[1] > 30 * softmax[0]


@pytest.mark.parametrize("tokens", [600, 1_023])
def test_bytes_of_a_packed_text_are_those_that_it_takes(
    tokens: int, default_model: EmbeddingModel
) -> None:
    plan = Planner(EngineConfig(device="cpu"), CPU).plan(default_model, tokens)
    assert plan.path == "packed"
    ids = torch.arange(tokens)
    with torch.inference_mode(), watch_peak(CPU) as peak:
        default_model.encoder(ids, [0, tokens])
    assert plan.bytes == pytest.approx(peak.peak, rel=0.1)


@pytest.mark.parametrize("tokens", [1_024, 1_500, 3_000, 8_192])
@pytest.mark.parametrize("keep", [True, False])
def test_bytes_of_a_sweep_are_those_that_it_takes(
    tokens: int, keep: bool, default_model: EmbeddingModel
) -> None:
    encoder = default_model.encoder
    # Room for a quarter of what kept projections would take is no room to keep them.
    planner = Planner(
        EngineConfig(device="cpu", max_sweep_bytes=8 * GIGABYTE if keep else tokens * 6_144 * 3),
        CPU,
    )
    plan = planner.plan(default_model, tokens)
    assert plan.keeps_projections == keep
    ids = np.arange(tokens, dtype=np.int32)
    with watch_peak(CPU) as peak:
        tiles = TiledPass(encoder, ids, keep_projections=keep)
        while not tiles.is_done and tiles.visit().layer < 1:
            pass
    assert plan.bytes == pytest.approx(peak.peak, rel=0.1)


def test_memory_decides_whether_projections_are_kept_and_what_fits(
    default_model: EmbeddingModel,
) -> None:
    config = EngineConfig(device="cpu", max_sweep_bytes=GIGABYTE)
    planner = Planner(config, CPU)
    plans = [planner.plan(default_model, tokens) for tokens in (10_000, 100_000, 1_000_000)]
    assert [plan.keeps_projections for plan in plans] == [True, False, False]
    assert [plan.fits for plan in plans] == [True, True, False]
    planner.admit(plans[1], Deadline(None))
    with pytest.raises(InsufficientMemory) as caught:
        planner.admit(plans[2], Deadline(None))
    assert (caught.value.limit, caught.value.actual) == (GIGABYTE, plans[2].bytes)


def test_a_text_beyond_the_models_longest_does_not_fit(
    planner: Planner, default_model: EmbeddingModel
) -> None:
    assert not planner.plan(default_model, default_model.info.max_tokens + 1).fits


@pytest.mark.parametrize("tokens", [0, -5])
def test_a_plan_is_for_some_tokens(
    tokens: int, planner: Planner, default_model: EmbeddingModel
) -> None:
    with pytest.raises(InvalidInput) as caught:
        planner.plan(default_model, tokens)
    assert (caught.value.param, caught.value.limit, caught.value.actual) == ("tokens", 1, tokens)


def test_what_cannot_be_done_in_time_is_refused(
    planner: Planner, default_model: EmbeddingModel
) -> None:
    plan = replace(planner.plan(default_model, 100_000), seconds=30.0)
    planner.admit(plan, Deadline(30.0))
    planner.admit(plan, Deadline(21.0))  # near enough to be worth a try
    with pytest.raises(DeadlineExceeded) as caught:
        planner.admit(plan, Deadline(10.0))
    assert (caught.value.limit, caught.value.actual) == (10.0, 30.0)


def test_seconds_follow_the_pace_of_the_machine(
    planner: Planner, default_model: EmbeddingModel
) -> None:
    before = planner.plan(default_model, 100_000).seconds
    for _ in range(50):
        planner.record_tiled(default_model, 100_000, 3 * before)
    assert planner.plan(default_model, 100_000).seconds == pytest.approx(3 * before, rel=0.05)
    for _ in range(100):
        planner.record_batch(
            default_model, [500, 500], price_of(default_model.encoder).batch_seconds([500, 500])
        )
    assert planner.plan(default_model, 100_000).seconds == pytest.approx(before, rel=0.05)


def test_the_pace_of_a_text_counts_the_ranks_that_read_it(default_model: EmbeddingModel) -> None:
    """A document with a record is read by one, however many ranks there are."""
    config = EngineConfig(device="cpu", max_sweep_bytes=100 * GIGABYTE)
    planner = Planner(config, CPU, num_ranks_for=lambda model, tokens: 4)
    together = planner.plan(default_model, 100_000).seconds
    alone = planner.plan(default_model, 100_000, tiled=True).seconds
    for _ in range(50):
        planner.record_tiled(default_model, 100_000, together, ranks=4)
        planner.record_tiled(default_model, 100_000, alone)
    assert planner.plan(default_model, 100_000).seconds == pytest.approx(together, rel=0.01)


def test_memory_is_held_for_a_text_that_ranks_may_leave_to_one(
    default_model: EmbeddingModel,
) -> None:
    roomy, tight = (
        Planner(
            EngineConfig(device="cpu", max_sweep_bytes=size),
            CPU,
            num_ranks_for=lambda model, tokens: 4,
        )
        for size in (100 * GIGABYTE, GIGABYTE // 2)
    )
    plan = roomy.plan(default_model, 100_000)
    alone = roomy.plan(default_model, 100_000, tiled=True)
    assert plan.bytes < alone.bytes == roomy.bytes_to_hold(default_model, plan)
    assert roomy.bytes_to_hold(default_model, alone) == alone.bytes
    plan = tight.plan(default_model, 400_000)
    assert plan.fits, "one rank could not read it alone, and is refused it when it begins"
    assert tight.bytes_to_hold(default_model, plan) == plan.bytes


def test_a_slow_spell_is_forgotten_when_nothing_confirms_it() -> None:
    now = 0.0
    pace = Pace(lambda: now)
    for _ in range(50):
        pace.add(1.0, 5.0)
    assert pace.factor == pytest.approx(5.0, rel=0.05)
    now = 300.0
    assert pace.factor == pytest.approx(1.0, rel=0.01)


def test_file_pages_that_the_kernel_would_drop_are_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.platform.memory._CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text(f"{1 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{900 << 10}\n")
    (tmp_path / "memory.stat").write_text(f"anon {100 << 10}\ninactive_file {700 << 10}\n")
    assert free_bytes(CPU) == (1024 - 900 + 700) << 10
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes(CPU) > 1 << 20


def test_the_engine_plans_texts_and_refuses_at_its_door(default_model: EmbeddingModel) -> None:
    observer = Notes()

    async def scenario() -> None:
        config = EngineConfig(device="cpu", max_sweep_bytes=100 << 20)
        async with AsyncEngine([default_model], config=config, observer=observer) as engine:
            text = "one two three " * 1_000
            plan = await engine.plan(text=text)
            assert plan.tokens == 3_002
            again = await engine.plan(3_002)
            assert again.seconds == pytest.approx(plan.seconds, rel=0.05)
            assert replace(again, seconds=plan.seconds) == plan
            too_much = "one two three " * 30_000
            for embed in (engine.embed_document(too_much), engine.embed([too_much])):
                with pytest.raises(InsufficientMemory):
                    await embed
            with pytest.raises(DeadlineExceeded):
                await engine.embed_document(text * 3, timeout_s=0.001)
            for wrong in (engine.plan(), engine.plan(5, text="five")):
                with pytest.raises(InvalidInput):
                    await wrong
            with pytest.raises(LLNError, match="unknown model"):
                await engine.plan(5, model="other")

    asyncio.run(scenario())
    assert observer.rejected_for == [
        "insufficient_memory", "insufficient_memory", "deadline_exceeded",
        "invalid_input", "invalid_input", "model_not_found",
    ]  # fmt: skip
    assert [unit[0] for unit in observer.units] == ["calibration", "batch"]


# Memory


def test_the_peak_is_of_what_lives_at_once() -> None:
    megabyte = torch.zeros(1 << 18)
    with watch_peak(CPU) as peak:
        for _ in range(5):
            (megabyte + 1).sum()
        pair = megabyte + 1, megabyte.view(2, -1) * 2
        view = pair[0][5:]
    assert peak.peak == pytest.approx(2 << 20, rel=0.01)
    del pair, view
    gc.collect()


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("attention", ["lln_diag", "softmax"])
def test_the_peak_is_the_same_without_products(dtype: str, attention: str) -> None:
    model = load_model(
        "default", attention=attention, config=EngineConfig(device="cpu", dtype=dtype)
    )
    # Other ids the second time: its memory may hold what the first products left there.
    ids, bounds, peaks = torch.arange(1_500), [0, 1_500], []
    for multiplies, read in ((True, ids.flip(0)), (False, ids)):
        with torch.inference_mode(), watch_peak(CPU, multiplies=multiplies) as peak:
            states = next(model.encoder.walk(read, bounds))
        peaks.append(peak.peak)
    assert peaks[0] == pytest.approx(peaks[1], rel=0.005)
    with torch.inference_mode():
        computed = next(model.encoder.walk(ids, bounds))
    assert not torch.equal(states, computed), "products were computed"


def test_there_is_some_memory() -> None:
    assert 0 < free_bytes(CPU) < 1 << 62


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("not enough memory"), False),
    ],
)
def test_running_out_of_memory_is_told_from_other_failures(
    error: Exception, expected: bool
) -> None:
    assert is_out_of_memory(error) is expected


def test_torch_says_so_when_a_cpu_has_no_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.float32)
    assert is_out_of_memory(caught.value)
