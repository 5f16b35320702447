"""freeze_loaded_objects: the garbage collector skips what is loaded."""

from __future__ import annotations

import gc

from engine.platform.process import freeze_loaded_objects


def test_frozen_objects_are_not_collected_again() -> None:
    class Node:
        def __init__(self) -> None:
            self.itself = self

    objects = [Node() for _ in range(1000)]
    freeze_loaded_objects()
    try:
        visited = {id(one) for one in gc.get_objects()}
        assert gc.get_freeze_count() >= len(objects)
        assert not visited & {id(one) for one in objects}
    finally:
        gc.unfreeze()
