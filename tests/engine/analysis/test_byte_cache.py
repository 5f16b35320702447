"""What the cache of open documents keeps when it is full."""

from __future__ import annotations

from engine.analysis.cache import ByteCache


def test_a_value_beside_others_drives_none_of_them_out() -> None:
    cache = ByteCache(max_bytes=100, max_idle_s=60)
    cache.put("states", "of all layers", 60)
    assert not cache.put_beside("projections", "of a layer", 41)
    assert cache.get("projections") is None
    assert cache.put_beside("projections", "of a layer", 40)
    assert cache.put_beside("projections", "of the next layer", 40), "it replaces its own"
    assert cache.get("states") == "of all layers"
    assert cache.get("projections") == "of the next layer"
    cache.put("another document", "its states", 90)
    assert cache.get("projections") is None
    assert cache.num_bytes == 90
