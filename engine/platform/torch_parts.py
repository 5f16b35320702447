"""Imports torch without what a server never uses of it.

A third of that import's time goes into kernels for torch's device "meta", which are in Python. They
tell shapes without values to torch's compiler and exporter.
"""

from __future__ import annotations

import sys
from types import ModuleType

_META_KERNELS = "torch._meta_registrations"


def import_torch() -> None:
    """Imports torch, unless it is imported, without its kernels for the device "meta".

    Whoever imports these afterwards gets them.
    """
    if "torch" in sys.modules:
        return
    sys.modules[_META_KERNELS] = ModuleType(_META_KERNELS)
    try:
        import torch
    finally:
        del sys.modules[_META_KERNELS]
    vars(torch).pop(_META_KERNELS.rpartition(".")[2], None)
