"""Fixtures of the kernels' tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import ismodule
from typing import Any

import pytest
import torch

from kernels.attention.gpu import tiles

# Without it cuBLAS refuses to work under deterministic algorithms, which poisoned_memory asks for.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter() -> Iterator[None]:
    """Makes interpreted kernels twice as fast, by not doing what has no effect or is done again."""
    if os.environ.get("TRITON_INTERPRET") != "1" or find_spec("triton") is None:
        yield
        return
    interpreter = import_module("triton.runtime.interpreter")
    builder = interpreter.interpreter_builder
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", patched_once(interpreter._patch_lang))
        patch.setattr(interpreter, "_get_np_dtype", kept_by_name(interpreter._get_np_dtype))
        # It is only looked at where kernels are debugged; compilers leave it out otherwise, too.
        assert not builder.options.debug
        patch.setattr(builder, "options", replace(builder.options, sanitize_overflow=False))
        yield


def patched_once(patch_language: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The interpreter puts functions of its own into Triton's language at each launch, and again at
    each call of a function by the kernel, which has an effect only where it finds Triton's own."""
    language = import_module("triton.language")

    def patch_once(function: Any) -> Any:
        modules = [one for one in (language, language.core) if one.__name__ in seen_by(function)]
        if any(language.core.is_builtin(module.load) for module in modules):
            return patch_language(function)
        return None

    @cache
    def seen_by(function: Any) -> set[str]:
        return {each.__name__ for each in function.__globals__.values() if ismodule(each)}

    return patch_once


def kept_by_name(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Of a type of Triton's; types of the same name are equal."""
    kept: dict[str, Any] = {}

    def converted(its_type: Any) -> Any:
        name = its_type.name
        if name not in kept:
            kept[name] = convert(its_type)
        return kept[name]

    return converted


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fresh buffers hold NaN, which shows where a kernel does not write."""
    # Deterministic mode fills uninitialised memory (test_fresh_buffers_are_poisoned holds it).
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sequences of a few tiles have several pieces, which the interpreter can run in time."""
    constants = import_module("kernels.attention.gpu.constants")
    monkeypatch.setattr(tiles, "piece_tokens", lambda _: 64)
    constants.forget_constants()
    yield
    constants.forget_constants()


@pytest.fixture
def two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short sequences run in two passes, like long ones."""
    monkeypatch.setattr(tiles, "SHORT_TOKENS", -1)
