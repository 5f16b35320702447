"""Lists in OpenAI's pages: so many items after one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.errors import ResourceNotFound, shown


def page_of(items: Sequence[dict[str, Any]], after: str | None, limit: int) -> dict[str, Any]:
    start = 0
    if after is not None:
        start = next((at for at, item in enumerate(items, 1) if item["id"] == after), 0)
        if not start:
            raise ResourceNotFound(
                f"after: there is no {shown(after)} in this list", param="after", actual=after
            )
    data = list(items[start : start + limit])
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": start + limit < len(items),
    }
