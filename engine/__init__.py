"""The machine: text in, vectors and diagnostics out. Needs no web framework.

    from engine import Engine

    with Engine.load() as engine:
        vectors = engine.embed(["a text", "another"])

The names below are loaded on first use, so that importing a part of this package stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.engine import AsyncEngine
    from engine.plain import Engine

__all__ = ["AsyncEngine", "Engine", "EngineConfig"]

_HOMES = {
    "AsyncEngine": "engine.engine",
    "Engine": "engine.plain",
    "EngineConfig": "engine.config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
