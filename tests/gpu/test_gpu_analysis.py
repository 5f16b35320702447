"""What attention does, read on a GPU: the instruments, maps and structure, beside the CPU's."""

from __future__ import annotations

import asyncio
from functools import cache

import numpy as np
import pytest

from engine.async_engine import AsyncEngine
from engine.attention_types import AttentionMap, HeadValues, MapOptions, Structure
from engine.diagnostics import INSTRUMENTS
from tests.gpu.device import DEVICE, MARKS, config, engine, long_text

pytestmark = MARKS

TEXT = long_text()[:3_000]
"""Some 700 tokens: more than a block, so LLN has a share."""

LAYERS = (0, 3)


def reading(instrument: str, device: str, model: str, dtype: str = "float32") -> HeadValues:
    found = engine(model, device, dtype).diagnose(TEXT, layers=LAYERS, instruments=[instrument])
    assert found.attention == (
        ("softmax",) * 2 if model == "all-MiniLM-L6-v2" else ("lln_diag",) * 2
    ), f"{found.tokens} tokens are read with {found.attention}"
    assert not found.left_out, found.left_out
    return found.instruments[0]


@pytest.mark.parametrize("model", ["default", "all-MiniLM-L6-v2"])
@pytest.mark.parametrize("instrument", list(INSTRUMENTS))
def test_an_instrument_reads_what_it_reads_on_the_cpu(instrument: str, model: str) -> None:
    found, wanted = (reading(instrument, device, model) for device in (DEVICE, "cpu"))
    assert found.method == wanted.method
    errors = np.zeros_like(wanted.values)
    for one in (found, wanted):
        if one.error is not None:
            errors = errors + np.array(one.error)
    mine, theirs = np.array(found.values), np.array(wanted.values)
    assert np.isfinite(mine).all(), mine
    allowed = 2e-3 * (np.abs(theirs) + 0.05) + errors
    apart = np.abs(mine - theirs)
    worst = np.unravel_index((apart / allowed).argmax(), apart.shape)
    assert (apart <= allowed).all(), (
        f"{instrument} of {model}: {mine[worst]:.6g} on {DEVICE}, {theirs[worst]:.6g} on the CPU, "
        f"allowed to be {allowed[worst]:.1e} apart"
    )
    assert [one.name for one in found.beside] == [one.name for one in wanted.beside]


def test_all_instruments_in_bfloat16() -> None:
    found = engine("default", DEVICE, "bfloat16").diagnose(TEXT, layers=LAYERS)
    assert {one.instrument for one in found.instruments} == set(INSTRUMENTS)
    for one in found.instruments:
        assert np.isfinite(np.array(one.values)).all(), one.instrument


@pytest.mark.parametrize(
    ("mode", "names"),
    [("exact", ("entropy", "temperature")), ("sampled", ("entropy", "spectral_gap", "pruning"))],
)
def test_a_diagnosis_of_a_swept_text(mode: str, names: tuple[str, ...]) -> None:
    found, wanted = (
        engine("default", device, sweep_from=1_024).diagnose(
            long_text()[:8_000], layers=[1], instruments=names, mode=mode
        )
        for device in (DEVICE, "cpu")
    )
    for mine, theirs in zip(found.instruments, wanted.instruments, strict=True):
        assert mine.instrument == theirs.instrument
        np.testing.assert_allclose(
            np.array(mine.values),
            np.array(theirs.values),
            rtol=2e-2,
            atol=2e-3,
            err_msg=f"{mine.instrument}, {mode}",
        )


@cache
def looked_at(device: str) -> tuple[list[AttentionMap], Structure]:
    async def look() -> tuple[list[AttentionMap], Structure]:
        async with AsyncEngine.load(["default", "all-MiniLM-L6-v2"], config=config(device)) as one:
            maps = [
                await one.attention_map(
                    TEXT,
                    model=model,
                    options=MapOptions(layer=2, head=5, height=64, width=48, links=20, topics=4),
                )
                for model in ("default", "all-MiniLM-L6-v2")
            ]
            return maps, await one.structure(long_text()[:9_000], model="default")

    return asyncio.run(look())


@pytest.mark.parametrize("number", [0, 1], ids=["lln_diag", "softmax"])
def test_an_attention_map(number: int) -> None:
    found, wanted = (looked_at(device)[0][number] for device in (DEVICE, "cpu"))
    np.testing.assert_allclose(found.mass.sum(1), 1.0, atol=1e-5)
    np.testing.assert_allclose(found.mass, wanted.mass, atol=2e-4)
    mine, theirs = ([one.weight for one in found_in.links] for found_in in (found, wanted))
    np.testing.assert_allclose(mine, theirs, rtol=1e-2, err_msg="the strongest links")
    if wanted.topics:
        assert found.topics is not None
        for topic, same in zip(found.topics, wanted.topics, strict=True):
            assert topic.channel == same.channel
            assert topic.share == pytest.approx(same.share, rel=1e-3)


def test_structure() -> None:
    found, wanted = (looked_at(device)[1] for device in (DEVICE, "cpu"))
    assert [one.tokens for one in found.segments] == [one.tokens for one in wanted.segments]
