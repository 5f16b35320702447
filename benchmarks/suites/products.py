"""Which library multiplies fastest, by precision, for the shapes of MiniLM's layers.

Times are those of one product of float32 rows unless the name says what goes in and comes out.
`value` is the rate in billions of multiplications a second.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.rows import Plan, Row, Run, Turns, take_turns
from benchmarks.workbench import Workbench
from engine.model.int8 import Int8Affine, multiplied, quantised
from engine.model.linear import FUSED, pack
from engine.model.weights import Affine
from engine.platform.byte_products import packed
from engine.platform.device import cpu_multiplies_bfloat16, cpu_multiplies_int8
from engine.platform.float_products import PRODUCT

SHAPES = ((384, 384), (384, 1152), (384, 1536), (1536, 384))
ROWS = (16, 512, 4096)
_CALLS = 20_000_000_000
"""Multiplications in a turn, at least; no turn has more than 100 calls."""


def measure(bench: Workbench, plan: Plan) -> Iterator[Row]:
    torch.set_num_threads(bench.threads)
    for rows in ROWS:
        for num_in, num_out in SHAPES:
            yield from _measure_shape(rows, num_in, num_out, bench.threads, plan)


@torch.inference_mode()
def _measure_shape(rows: int, num_in: int, num_out: int, threads: int, plan: Plan) -> Iterator[Row]:
    x = torch.randn(rows, num_in)
    layer = Affine(torch.randn(num_out, num_in) / 20, torch.randn(num_out))
    runs: dict[str, Run] = {}
    for library in (_torch_products, _int8_products, _onnx_products, _openvino_products):
        runs.update(library(x, layer, threads))
    count = rows * num_in * num_out
    calls = min(max(_CALLS // 10 // count, 2), 100)
    taken = take_turns(runs, Turns(repeats=plan.turns(3), calls=calls, warm=False))
    for name, seconds in taken.items():
        rates = [count / one / 1e9 for one in seconds]
        yield Row(
            case=f"{rows} x {num_in} x {num_out}",
            measure=name,
            value=median(rates),
            seconds={name: seconds},
            spread=(min(rates), max(rates)),
        )


def _torch_products(x: torch.Tensor, layer: Affine, threads: int) -> Iterator[tuple[str, Run]]:
    weight, bias = layer
    yield "float32, torch (MKL)", lambda: F.linear(x, weight, bias)
    packed = pack(layer, torch.float32)
    yield "float32, oneDNN packed", lambda: PRODUCT.default(x, *packed[:2], "none", (), "")
    gelu = torch.ops.aten.gelu_.default
    yield "float32, oneDNN's GELU within", lambda: PRODUCT.default(x, *packed[:2], *FUSED["gelu"])
    yield (
        "float32, torch's GELU after it",
        lambda: gelu(PRODUCT.default(x, *packed[:2], *FUSED[None])),
    )
    if cpu_multiplies_bfloat16():
        assert bias is not None, "it was given"
        half = pack(Affine(weight.bfloat16(), bias.bfloat16()), torch.bfloat16)
        y = x.bfloat16()
        yield (
            "bfloat16, oneDNN packed, bfloat16 in and out",
            lambda: PRODUCT.default(y, *half[:2], "none", (), ""),
        )


def _int8_products(x: torch.Tensor, layer: Affine, threads: int) -> Iterator[tuple[str, Run]]:
    if not cpu_multiplies_int8():
        return
    ours = quantised(*layer)
    yield "int8, ours: oneDNN, by token", lambda: multiplied(x, ours)
    rows = torch.randint(0, 256, x.shape, dtype=torch.uint8)
    whole = _whole_numbers(ours, x.shape[1])
    weight = packed(whole.t().contiguous())
    product = torch.ops.onednn.qlinear_pointwise.default
    yield (
        "int8, oneDNN qlinear, bytes in, float32 out",
        lambda: product(
            *(rows, 1.0, 128, weight, ours.scale, ours.zero, None, 1.0, 0),
            *(torch.float32, "none", [], ""),
        ),
    )
    yield (
        "int8, oneDNN qlinear with GELU, bytes in and out",
        lambda: product(
            *(rows, 0.02, 128, weight, ours.scale, ours.zero, layer.bias, 0.02, 0),
            *(torch.uint8, "gelu", [], "none"),
        ),
    )
    signed = rows.view(torch.int8)
    yield "int8, torch._int_mm, bytes in, int32 out", lambda: torch._int_mm(signed, whole)
    by_tensor = _fbgemm(x, layer, ours.scale)
    yield "int8, torch.ao (FBGEMM), by tensor", by_tensor
    if importlib.util.find_spec("torchao"):
        yield "int8, torchao, by token", _torchao(x, layer)


def _whole_numbers(ours: Int8Affine, num_in: int) -> torch.Tensor:
    """Our weight [in, out] without the rows of zeros that the rows' ranges are multiplied by."""
    return ours.weight.to_dense()[:num_in].contiguous()


def _fbgemm(x: torch.Tensor, layer: Affine, scale: torch.Tensor) -> Run:
    torch.backends.quantized.engine = "fbgemm"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        weight = torch.quantize_per_channel(
            layer.weight, scale.double(), torch.zeros(len(scale)).long(), 0, torch.qint8
        )
    packed = torch.ops.quantized.linear_prepack(weight, layer.bias)
    return lambda: torch.ops.quantized.linear_dynamic(x, packed, False)


def _torchao(x: torch.Tensor, layer: Affine) -> Run:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    num_out, num_in = layer.weight.shape
    inner = torch.nn.Linear(num_in, num_out)
    inner.weight.data.copy_(layer.weight)
    module = torch.nn.Sequential(inner)
    quantize_(module, Int8DynamicActivationInt8WeightConfig())
    return lambda: module(x)


def _onnx_products(x: torch.Tensor, layer: Affine, threads: int) -> Iterator[tuple[str, Run]]:
    ours, numbers = quantised(*layer), x.numpy()
    whole, scale = _whole_numbers(ours, x.shape[1]).numpy(), ours.scale.numpy()
    assert layer.bias is not None, "it was given"
    parts = {"w": whole, "s": scale, "b": layer.bias.numpy()}
    dynamic = _session("DynamicQuantizeMatMul", ["x", "w", "s", "", "b"], parts, "f", "f", threads)
    yield "int8, ONNX Runtime, by tensor", lambda: dynamic.run(None, {"x": numbers})
    zero = {"w": whole, "z": np.array(128, np.uint8)}
    integer = _session("MatMulInteger", ["x", "w", "z"], zero, "u", "i", threads)
    rows = np.random.default_rng(0).integers(0, 256, x.shape, dtype=np.uint8)
    yield (
        "int8, ONNX Runtime MatMulInteger, bytes in, int32 out",
        lambda: integer.run(None, {"x": rows}),
    )
    wide = {"w": layer.weight.t().contiguous().numpy()}
    plain = _session("MatMul", ["x", "w"], wide, "f", "f", threads)
    yield "float32, ONNX Runtime", lambda: plain.run(None, {"x": numbers})


def _session(
    op: str, names: list[str], parts: Mapping[str, Any], in_: str, out: str, threads: int
) -> Any:
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    types = {"f": onnx.TensorProto.FLOAT, "u": onnx.TensorProto.UINT8, "i": onnx.TensorProto.INT32}
    domain = "com.microsoft" if op.startswith("Dynamic") else ""
    num_in, num_out = parts["w"].shape
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], domain=domain)],
        op,
        [helper.make_tensor_value_info("x", types[in_], [None, num_in])],
        [helper.make_tensor_value_info("y", types[out], [None, num_out])],
        [numpy_helper.from_array(value, name) for name, value in parts.items()],
    )
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _openvino_products(x: torch.Tensor, layer: Affine, threads: int) -> Iterator[tuple[str, Run]]:
    import openvino
    from openvino import opset13 as op

    ours = quantised(*layer)
    assert layer.bias is not None, "it was given"
    numbers, bias = x.numpy(), layer.bias.numpy()[None]

    def compiled(weight: Any, group: int) -> Callable[[], object]:
        rows = op.parameter([-1, x.shape[1]], np.float32)
        y = op.add(op.matmul(rows, weight, False, True), op.constant(bias))
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(group),
        }
        model = openvino.Core().compile_model(openvino.Model([y], [rows]), "CPU", settings)
        request = model.create_infer_request()
        request.set_input_tensor(0, openvino.Tensor(numbers))
        return lambda: request.infer()

    yield "float32, OpenVINO", compiled(op.constant(layer.weight.numpy()), 0)
    bytes_ = op.convert(
        op.constant(_whole_numbers(ours, x.shape[1]).t().contiguous().numpy()), np.float32
    )
    scaled = op.multiply(bytes_, op.constant(ours.scale.numpy()[:, None].copy()))
    yield "int8, OpenVINO, by token", compiled(scaled, x.shape[1])
