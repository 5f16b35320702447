"""GET /docs: the API as a page, drawn from /openapi.json with nothing fetched from elsewhere."""

from __future__ import annotations

from importlib import resources

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from service.http.json import json_response

router = APIRouter(include_in_schema=False)

_PAGE = resources.files("service.http").joinpath("docs.html").read_text(encoding="utf-8")


@router.get("/docs")
async def docs() -> Response:
    return HTMLResponse(_PAGE)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    return json_response(request.app.openapi())
