"""Which precisions a machine can use: by its instructions, by limits on them, by device."""

from __future__ import annotations

import logging

import pytest
import torch

from engine.errors import InvalidInput
from engine.platform.device import (
    REDUCED,
    choose_placement,
    cpu_multiplies_bfloat16,
    cpu_multiplies_int8,
    possible_precisions,
)
from tests.engine.limited_processes import printed_by
from tests.engine.precisions import needs_int8, needs_reduced_int8
from tests.forked import printed_by_fork


@pytest.mark.parametrize(
    ("device", "told"),
    [("tpu", "use auto, cpu, cuda or cuda:N"), ("cuda", "use auto or cpu"), ("cuda:3", "use auto")],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_device_that_is_not_there(device: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        choose_placement(device, "auto")


@pytest.mark.parametrize(
    ("has", "limit", "int8", "bfloat16"),
    [
        ({}, "", False, False),
        ({"avx512_vnni": True}, "", True, False),
        ({"avx_vnni": True}, "avx2_vnni", True, False),
        ({"avx512_vnni": True}, "AVX2_VNNI", False, False),
        ({"avx512_vnni": True, "avx512_bf16": True}, "AVX512_CORE_VNNI", True, False),
        ({"avx512_vnni": True, "avx512_bf16": True}, "AVX512_CORE_BF16", True, True),
        ({"avx512_vnni": True, "avx512_bf16": True}, "AVX512_CORE", False, False),
        ({"amx_int8": True, "amx_bf16": True}, "", True, True),
        ({"amx_int8": True, "amx_bf16": True}, "AVX512_CORE_FP16", False, False),
    ],
)
def test_units(
    has: dict[str, bool],
    limit: str,
    int8: bool,
    bfloat16: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of processors that this machine is not, so what torch says of it is replaced."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert (cpu_multiplies_int8(), cpu_multiplies_bfloat16()) == (int8, bfloat16)


def test_int8_without_its_instructions_is_refused_or_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX")
    for precision in ("int8", REDUCED):
        with pytest.raises(InvalidInput, match="no instructions that add int8") as refused:
            choose_placement("cpu", precision)
        assert (refused.value.param, refused.value.actual) == ("dtype", precision)
        assert "fallback_dtype" in refused.value.message
    with caplog.at_level(logging.WARNING):
        assert choose_placement("cpu", "int8", "float32").dtype is torch.float32
    assert "int8 cannot be used here, and float32 is used instead" in caplog.text
    with pytest.raises(InvalidInput, match="fallback_dtype 'float16' cannot be used"):
        choose_placement("cpu", "int8", "float16")


@needs_reduced_int8
def test_int8_without_vnni_has_another_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    with caplog.at_level(logging.WARNING):
        placement = choose_placement("cpu", "int8")
    assert (placement.precision, placement.dtype) == (REDUCED, torch.int8)
    assert f"int8 is used as {REDUCED} here" in caplog.text
    assert possible_precisions() == ("float32", REDUCED)
    assert choose_placement("cpu", "bfloat16", "int8").precision == REDUCED


@pytest.mark.parametrize(("dtype", "fallback"), [("int4", "none"), ("float32", "auto")])
def test_unknown_names(dtype: str, fallback: str) -> None:
    with pytest.raises(InvalidInput, match="float32, bfloat16, float16, int8"):
        choose_placement("cpu", dtype, fallback)


@needs_int8
def test_int8_and_its_reduced_range_are_both_to_be_had_with_vnni() -> None:
    for precision in ("int8", REDUCED):
        assert choose_placement("cpu", precision).precision == precision
    assert {"int8", REDUCED} <= set(possible_precisions())


@needs_reduced_int8
@pytest.mark.parametrize(
    "limit", ["ATEN_CPU_CAPABILITY=avx2", "ONEDNN_MAX_CPU_ISA=AVX2", "ONEDNN_MAX_CPU_ISA=AVX"]
)
def test_right_answers_under_restricted_instructions(limit: str) -> None:
    """Where bytes are not added in 32 bits, whatever torch itself may use, the range is reduced."""
    code = (
        "import torch\n"
        "from engine.model.int8 import multiplied, quantised\n"
        "from engine.platform.device import REDUCED, choose_placement\n"
        "try: found = choose_placement('cpu', 'int8').precision\n"
        "except Exception as error: found = type(error).__name__\n"
        "x = torch.full((20, 64), 3.0); x[:, 32:] = 2.9\n"
        "layer = quantised(torch.ones(32, 64), None, reduced=found != 'int8')\n"
        "with torch.inference_mode():\n"
        "    print(found, float(multiplied(x, layer).max()))\n"
    )
    # ATen reads its limit when it is imported, oneDNN at the first product.
    if limit.startswith("ATEN"):
        precision, largest = printed_by(code, **dict([limit.split("=")]))
    else:
        precision, largest = printed_by_fork(code, **dict([limit.split("=")])).split()
    assert float(largest) == pytest.approx(32 * (3.0 + 2.9), rel=0.01)
    usual = "int8" if cpu_multiplies_int8() else REDUCED
    expected = {"AVX2": REDUCED, "AVX": "InvalidInput"}
    assert precision == expected.get(limit.partition("=")[2], usual)
