"""How errors look where a vendor's clients would not find our sentence in our own envelope.

Each keeps our fields beside the vendor's, as far as names allow.
"""

from __future__ import annotations

from typing import Any

from service.errors import ErrorFields


def with_detail(fields: ErrorFields) -> dict[str, Any]:
    """Voyage and Jina: `detail` is a sentence."""
    return {"detail": fields["message"], "error": fields}


def with_message(fields: ErrorFields) -> dict[str, Any]:
    """Cohere: `message` is a sentence."""
    return {"message": fields["message"], "error": fields}


def as_sentence(fields: ErrorFields) -> dict[str, Any]:
    """Ollama: `error` is a sentence."""
    others = {name: value for name, value in fields.items() if name != "message"}
    return {"error": fields["message"], **others}
