"""The ledgers of this process's routers, for those that send past Serve."""

from __future__ import annotations

from service.replicas.ledger import Ledger

_LEDGERS: list[Ledger] = []


def add_ledger() -> Ledger:
    _LEDGERS.append(Ledger())
    return _LEDGERS[-1]


def newest_ledger() -> Ledger | None:
    return _LEDGERS[-1] if _LEDGERS else None
