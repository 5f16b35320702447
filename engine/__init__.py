"""The engine: texts in, vectors and diagnostics out. Needs no web framework.

    from engine import Engine

    with Engine.load() as engine:
        vectors = engine.embed(["a text", "another"])

The names below are loaded on first use: importing a part of this package stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.async_engine import AsyncEngine
    from engine.config import EngineConfig
    from engine.engine import Engine

__all__ = ["AsyncEngine", "Engine", "EngineConfig"]

_HOMES = {
    "AsyncEngine": "engine.async_engine",
    "Engine": "engine.engine",
    "EngineConfig": "engine.config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
