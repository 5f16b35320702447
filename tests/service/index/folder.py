"""A folder to be indexed, and what runs the commands on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Run = Callable[..., Any]

PAGES = {
    "fox.md": "# The fox\n\nThe quick brown fox jumps over the lazy dog.\n",
    "deep/attention.txt": "Attention over long documents costs the square of their length.\n",
    "deep/wizards.html": "<title>Wizards</title><nav>Home</nav><p>Seven wizards <b>box</b>.</p>",
}
