"""What a text, or an update of a document, would take: the same over both protocols."""

from __future__ import annotations

from engine.async_engine import AsyncEngine
from engine.errors import InvalidInput
from engine.types import Context, Plan


async def planned(
    engine: AsyncEngine,
    *,
    tokens: int | None,
    text: str | None,
    context: Context | None,
    vector: bool,
    record: bytes | None,
    model: str | None,
    timeout_s: float | None,
) -> Plan:
    if record is None:
        return await engine.plan(
            tokens,
            text=text,
            context=context,
            vector=vector,
            model=model,
            timeout_s=timeout_s,
        )
    if text is None:
        raise InvalidInput("a record is planned for with the document's text", param="text")
    without_vector = None if vector else False
    for name, given in (("tokens", tokens), ("context", context), ("vector", without_vector)):
        if given is not None:
            raise InvalidInput(
                f"{name} cannot be combined with a record, which has that of its document",
                param=name,
                actual=given,
            )
    return await engine.plan_update(record, text, model=model, timeout_s=timeout_s)
