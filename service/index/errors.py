"""What can be wrong with an index."""

from __future__ import annotations

from engine.errors import InvalidInput


class IndexNotFound(InvalidInput):
    """There is no index where one was asked for."""

    code = "index_not_found"


class IndexMismatch(InvalidInput):
    """The index was made by another model, in another way, or by another version."""

    code = "index_mismatch"
