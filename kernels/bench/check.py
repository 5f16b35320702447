"""Checks the operations against the float64 reference on this device, one printed line a check."""

from __future__ import annotations

import faulthandler
import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor

from kernels.attention import Gate, lln_diag_attention, reference, softmax_attention
from kernels.bench import peers
from kernels.bench.apart import run_apart
from kernels.bench.report import first_line
from kernels.instruments import moments, row_statistics
from kernels.instruments import reference as instruments_reference

Check = tuple[str, Callable[[], None]]
LENGTHS = (63, 0, 500, 1, 300)
LONGER = 1300  # of several pieces, on a GPU; the dense reference is slow on a CPU
BLOCK_SIZE = 64
NUM_HEADS = 2
ROWS = ("q", "k", "v")
LEAVES = (*ROWS, "alpha", "beta", "mix")
FORMS_DIFFER_BY = {torch.float32: (3e-5, 1e-3), torch.bfloat16: (3e-2, 5e-2)}
"""Allowed difference of an output, absolute, and of a gradient, relative to its greatest number."""
PATIENCE_S = 150
"""Time for one check on a GPU, so that a kernel that hangs does not use up the run."""


def run_checks(device: torch.device) -> list[str]:
    """The names of the checks that failed."""
    names = [name for name, _ in checks(device)]
    if device.type != "cuda":
        return [name for name in names if not report(device, name)]
    # Most of the time goes into compiling kernels; the measurements then find them in the cache.
    workers = max(1, min(8, (os.cpu_count() or 1) // 2))
    answers = run_apart([partial(_report_in_time, device, name) for name in names], workers)
    for name, answer in zip(names, answers, strict=True):
        if answer is None:
            print(f"FAILED  {name}: its process has died, or took {PATIENCE_S} s", flush=True)
    return [name for name, passed in zip(names, answers, strict=True) if not passed]


def _report_in_time(device: torch.device, name: str) -> bool:
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    try:
        return report(device, name)
    finally:
        faulthandler.cancel_dump_traceback_later()


def report(device: torch.device, name: str) -> bool:
    """Runs one check and prints how it went."""
    try:
        dict(checks(device))[name]()
    except Exception as error:
        print(f"FAILED  {name}: {first_line(error)}", flush=True)
        return False
    print(f"ok      {name}", flush=True)
    return True


def checks(device: torch.device) -> Iterator[Check]:
    for dim in (32, 64, 128):  # the longest first
        name = f"backward, D {dim}, blocks of 128, {torch.bfloat16}"
        yield name, partial(check_backward, device, dim, torch.bfloat16, 128)
    for dim, block_size in product((32, 64), (16, 128, 512)):
        for dtype in FORMS_DIFFER_BY:
            name = f"sinks and maps, D {dim}, blocks of {block_size}, {dtype}"
            yield name, partial(check_forms, device, dim, block_size, dtype)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for dim in (16, 60, 64, 128, 256):
            yield f"forward, D {dim}, {dtype}", partial(check_forward, device, dim, dtype)
        for dim in (32, 64, 128):
            yield f"backward, D {dim}, {dtype}", partial(check_backward, device, dim, dtype)
            yield f"softmax, D {dim}, {dtype}", partial(check_softmax, device, dim, dtype)
    yield "bitwise, run to run and whatever the batch", partial(check_repeats, device)
    yield "NaN stays in its sequence", partial(check_nan, device)
    yield "instruments", partial(check_instruments, device)
    yield "more numbers than 32 bits count", partial(check_long, device)
    if device.type == "cuda":
        yield "captured as a CUDA graph", partial(check_graph, device)
        yield "torch.compile in one graph", partial(check_compile, device)


def make_arguments(
    device: torch.device, dim: int, dtype: torch.dtype, block_size: int = BLOCK_SIZE
) -> dict[str, Any]:
    lengths = (*LENGTHS, LONGER) if device.type == "cuda" else LENGTHS
    generator = torch.Generator().manual_seed(dim)
    size = sum(lengths), NUM_HEADS, dim
    q, k, v = (torch.randn(size, generator=generator).to(device, dtype) for _ in range(3))
    per_sequence = len(lengths), NUM_HEADS
    return {
        "q": q,
        "k": k,
        "v": v,
        "alpha": (1 + 0.3 * torch.randn(per_sequence, generator=generator)).to(device),
        "beta": (1 + 0.3 * torch.randn(per_sequence, generator=generator)).to(device),
        "mix": torch.rand(NUM_HEADS, generator=generator).to(device),
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32).to(device),
        "block_size": block_size,
    }


def plain(arguments: dict[str, Any]) -> Tensor:
    """The plain formula, one sequence after the other, in the dtype of the rows."""
    bounds = arguments["cu_seqlens"].tolist()
    parts = []
    for index in range(len(bounds) - 1):
        rows = slice(bounds[index], bounds[index + 1])
        if rows.start < rows.stop:
            q, k, v = (arguments[name][rows] for name in ("q", "k", "v"))
            alpha, beta = arguments["alpha"][index], arguments["beta"][index]
            settings = {"mix": arguments["mix"], "block_size": arguments["block_size"]}
            parts.append(peers.lln_diag(q, k, v, alpha=alpha, beta=beta, **settings))
    return torch.cat(parts)


def check_forward(device: torch.device, dim: int, dtype: torch.dtype) -> None:
    arguments = make_arguments(device, dim, dtype)
    truth = reference.lln_diag_attention(**arguments)
    require_as_exact(lln_diag_attention(**arguments), plain(arguments), truth, 2, "output")


def check_backward(
    device: torch.device, dim: int, dtype: torch.dtype, block_size: int = BLOCK_SIZE
) -> None:
    arguments = make_arguments(device, dim, dtype, block_size)
    grad = torch.randn(arguments["q"].shape, generator=torch.Generator().manual_seed(1))
    grad = grad.to(device, dtype)
    found = gradients(lambda given: lln_diag_attention(**given), arguments, grad)
    same = gradients(plain, arguments, grad)
    truth = gradients(lambda given: reference.lln_diag_attention(**given), arguments, grad.double())
    for name, mine, other, exact in zip(LEAVES, found, same, truth, strict=True):
        require_as_exact(mine, other, exact, 3, f"gradient of {name}")


def check_softmax(device: torch.device, dim: int, dtype: torch.dtype) -> None:
    arguments = make_arguments(device, dim, dtype)
    given = {name: arguments[name] for name in (*ROWS, "cu_seqlens")}
    truth = reference.softmax_attention(**given)
    require_as_exact(softmax_attention(**given), plain_softmax(given), truth, 2, "output")
    grad = torch.randn(given["q"].shape, generator=torch.Generator().manual_seed(1))
    grad = grad.to(device, dtype)
    found = gradients(lambda rows: softmax_attention(**rows), given, grad, ROWS)
    same = gradients(plain_softmax, given, grad, ROWS)
    exact = gradients(lambda rows: reference.softmax_attention(**rows), given, grad.double(), ROWS)
    for name, mine, other, theirs in zip(ROWS, found, same, exact, strict=True):
        require_as_exact(mine, other, theirs, 3, f"gradient of {name}")


def plain_softmax(given: dict[str, Any]) -> Tensor:
    """The formula, one sequence after the other: each is one block."""
    bounds = given["cu_seqlens"].tolist()
    parts = (tuple(given[name][i:j] for name in ROWS) for i, j in pairwise(bounds) if i < j)
    return torch.cat([peers.diag(q, k, v, len(q)) for q, k, v in parts])


def gradients(
    run: Callable[[dict[str, Any]], Tensor],
    arguments: dict[str, Any],
    grad: Tensor,
    of: tuple[str, ...] = LEAVES,
) -> tuple[Tensor, ...]:
    leaves = {name: arguments[name].detach().requires_grad_() for name in of}
    return torch.autograd.grad(run({**arguments, **leaves}), list(leaves.values()), grad)


def check_forms(device: torch.device, dim: int, block_size: int, dtype: torch.dtype) -> None:
    arguments = make_arguments(device, dim, dtype, block_size)
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(NUM_HEADS, dim, dim, generator=generator).to(device) / math.sqrt(dim)
    bias = torch.randn(NUM_HEADS, dim, generator=generator).to(device)
    arguments |= {"num_sinks": (2, 1), "q_map": (weight, bias)}
    by_token = torch.rand(arguments["q"].shape[:2], generator=generator).to(device)
    arguments |= {"k_map": (weight, bias), "mix": by_token}
    of_output, of_gradients = FORMS_DIFFER_BY[dtype]
    for mix in (Gate(bias / 8, torch.logit(by_token[0])), by_token):
        given = arguments | {"mix": mix, "mix_scale": 0.7}
        truth = reference.lln_diag_attention(**given)
        difference = float((lln_diag_attention(**given) - truth).abs().max())
        require(difference <= of_output, f"differs by {difference:.2g}")
    grad = torch.randn_like(arguments["q"])
    found = gradients(lambda given: lln_diag_attention(**given), arguments, grad)
    exact = gradients(lambda given: reference.lln_diag_attention(**given), arguments, grad.double())
    for name, mine, theirs in zip(LEAVES, found, exact, strict=True):
        error = float((mine - theirs).abs().max() / theirs.abs().max())
        require(error <= of_gradients, f"gradient of {name} differs by {error:.2g}")


def check_long(device: torch.device) -> None:
    """Offsets beyond 32 bits: a text repeated many times has the outputs of one reading."""
    tokens, num_heads, dim = 2048, 16, 64
    # The last reading begins beyond 2**31 numbers, on a GPU.
    readings = 2**31 // (tokens * num_heads * dim) + 2 if device.type == "cuda" else 3
    generator = torch.Generator().manual_seed(3)
    size = tokens, num_heads, dim
    q, k, v, grad = (
        torch.randn(size, generator=generator).to(device, torch.bfloat16) for _ in range(4)
    )

    def answers(times: int) -> list[Tensor]:
        rows = [x.repeat(times, 1, 1).requires_grad_() for x in (q, k, v)]
        out = lln_diag_attention(*rows, alpha=1.0, beta=1.0, mix=0.5, block_size=BLOCK_SIZE)
        found = torch.autograd.grad(out, rows, grad.repeat(times, 1, 1))
        return [x.detach()[-tokens:].clone() for x in (out, *found)]

    for what, found, expected in zip(("output", *ROWS), answers(readings), answers(1), strict=True):
        error = float((found - expected).abs().max() / expected.abs().max())
        require(error <= 3e-2, f"{what}: the last reading differs by {error:.2g}")


def check_repeats(device: torch.device) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        arguments = make_arguments(device, 64, dtype)
        together = lln_diag_attention(**arguments)
        for _ in range(20):
            require(torch.equal(together, lln_diag_attention(**arguments)), f"{dtype}: run to run")
        if device.type != "cuda":
            continue  # a CPU's products may depend on the shape of the batch
        bounds = arguments["cu_seqlens"].tolist()
        for index in range(len(bounds) - 1):
            rows = slice(bounds[index], bounds[index + 1])
            alone = {name: arguments[name][rows] for name in ("q", "k", "v")}
            alone |= {name: arguments[name][index : index + 1] for name in ("alpha", "beta")}
            out = lln_diag_attention(**alone, mix=arguments["mix"], block_size=BLOCK_SIZE)
            require(torch.equal(together[rows], out), f"{dtype}: sequence {index} alone")


def check_nan(device: torch.device) -> None:
    arguments = make_arguments(device, 32, torch.float32)
    clean = lln_diag_attention(**arguments)
    arguments["k"] = arguments["k"].clone()
    arguments["k"][100] = math.nan
    found = lln_diag_attention(**arguments)
    require(bool(found[63:563].isnan().all()), "hidden in its own sequence")
    for rows in (slice(0, 63), slice(563, None)):
        require(torch.equal(found[rows], clean[rows]), "another sequence changed")
    settings = {name: arguments[name] for name in ("alpha", "beta", "mix", "cu_seqlens")}
    for kind in ("lln", "lln_diag"):
        statistics = row_statistics(arguments["q"], arguments["k"], kind=kind, **settings)
        hidden = bool(statistics.entropy[63:563].isfinite().any())
        require(not hidden, f"{kind}: hidden in row statistics")


def check_instruments(device: torch.device) -> None:
    given = make_arguments(device, 64, torch.float32)
    q, k = given["q"], given["k"]
    settings = {name: given[name] for name in ("alpha", "beta", "mix", "cu_seqlens", "block_size")}
    for kind in ("softmax", "lln", "lln_diag"):
        found = row_statistics(q, k, kind=kind, **settings)
        truth = instruments_reference.row_statistics(q, k, kind=kind, **settings)
        for name, mine, theirs in zip(truth._fields, found, truth, strict=True):
            error = float(
                ((mine - theirs).abs().amax((-2, -1)) / theirs.abs().amax((-2, -1))).max()
            )
            require(error <= 1e-4, f"{kind}: {name} differs by {error:.2g}")
    gram = moments(q, given["cu_seqlens"]).gram
    error = float((gram - instruments_reference.moments(q, given["cu_seqlens"]).gram).abs().max())
    require(error <= 1e-2, f"Gram matrix differs by {error:.2g}")


def check_graph(device: torch.device) -> None:
    arguments = make_arguments(device, 64, torch.bfloat16)
    expected = lln_diag_attention(**arguments)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = lln_diag_attention(**arguments)
    graph.replay()
    torch.cuda.synchronize(device)
    require(torch.equal(out, expected), "the graph's output differs")


def check_compile(device: torch.device) -> None:
    arguments = make_arguments(device, 64, torch.bfloat16)
    compiled = torch.compile(lambda **given: 2 * lln_diag_attention(**given), fullgraph=True)
    require(torch.equal(compiled(**arguments), 2 * lln_diag_attention(**arguments)), "differs")


def require_as_exact(
    found: Tensor, same_dtype: Tensor, truth: Tensor, factor: int, what: str
) -> None:
    """At most `factor` times the error of plain torch, plus a few last places of float32.

    Plain torch may be exact by luck in its greatest number, so the error of rounding the truth to
    these dtypes is allowed as well.
    """
    error = float((found.double() - truth).abs().max())
    greatest = float(truth.abs().max())
    floor = 32 * torch.finfo(torch.float32).eps * max(1.0, greatest)
    floor += torch.finfo(found.dtype).eps / 2 * greatest
    allowed = factor * float((same_dtype.double() - truth).abs().max()) + floor
    require(error <= allowed, f"{what}: error {error:.3g} where {allowed:.3g} is allowed")


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
