"""Lists in OpenAI's pages: this many items after one of them."""

from __future__ import annotations

from typing import Any, Protocol

from starlette.responses import Response

from service.batches.records import Page
from service.http.json_response import dump_list, json_response


class Listed(Protocol):
    @property
    def id(self) -> str: ...

    def document(self) -> dict[str, Any]: ...


async def page_response(page: Page[Any]) -> Response:
    items: list[Listed] = page.items
    return json_response(
        {
            "object": "list",
            "data": await dump_list(item.document() for item in items),
            "first_id": items[0].id if items else None,
            "last_id": items[-1].id if items else None,
            "has_more": page.has_more,
        }
    )
