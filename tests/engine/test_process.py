"""What a process asks of the libraries below torch, and of Python."""

from __future__ import annotations

import gc

from engine.process import set_aside_what_stays


def test_what_a_server_holds_is_not_looked_through_again() -> None:
    class Node:
        def __init__(self) -> None:
            self.itself = self

    held = [Node() for _ in range(1000)]
    set_aside_what_stays()
    try:
        looked_at = {id(one) for one in gc.get_objects()}
        assert gc.get_freeze_count() >= len(held)
        assert not looked_at & {id(one) for one in held}
    finally:
        gc.unfreeze()
