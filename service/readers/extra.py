"""Packages of extras, which only some formats and commands need."""

from __future__ import annotations

import importlib
from types import ModuleType

from service.errors import NotAvailable


def need(module: str, what: str, *, extra: str = "index") -> ModuleType:
    """The module, or an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise NotAvailable(
            f"{what} needs {module.partition('.')[0]}, which is not installed: "
            f"pip install 'lln[{extra}]'",
            code="missing_package",
        ) from None
