"""A model as the engine tells of it, for tests that need no engine."""

from __future__ import annotations

from engine.types import ModelInfo

MODEL = ModelInfo(
    name="default",
    family="bert",
    attention=("lln_diag",) * 6,
    dim=384,
    num_layers=6,
    num_heads=12,
    max_tokens=4096,
    position_table=512,
    pooling="mean",
    prompts={},
    revision="0" * 64,
    calibration=None,
    source="package",
    device="cpu",
    dtype="float32",
    int8_range=0.25,
)
