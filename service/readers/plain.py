"""Plain text, as it is."""

from __future__ import annotations

from service.readers.extracted import Extracted, decode


def read_plain(content: bytes) -> Extracted:
    return Extracted(text=decode(content))
