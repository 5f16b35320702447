"""Packages of the extra `index`, which only some formats need."""

from __future__ import annotations

import importlib
from types import ModuleType

from service.errors import NotAvailable

HOW_TO_INSTALL = "pip install 'lln[index]'"


def need(module: str, what: str) -> ModuleType:
    """The module, or an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise NotAvailable(
            f"{what} needs {module.partition('.')[0]}, which is not installed: {HOW_TO_INSTALL}",
            code="missing_package",
        ) from None
