"""Clients that do not fit beside the others, from where tools/install_clients.py puts them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


def environment_with(group: str) -> dict[str, str]:
    """What a process needs to import these clients; skips the test if they are not installed."""
    folder = Path(sys.prefix) / "clients" / group
    if not folder.exists():
        pytest.skip(f"{group} is not installed: python tools/install_clients.py")
    return {
        **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        "PYTHONPATH": str(folder),
        "PYTHONWARNINGS": "ignore",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HF_HUB_OFFLINE": "1",
    }
