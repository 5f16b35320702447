"""Records that are damaged, forged or of another model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pytest
from safetensors.torch import save
from torch import Tensor

from engine.engine import Engine
from engine.errors import InvalidInput
from engine.living import record_bytes
from engine.living.record_bytes import VERSION, from_bytes
from engine.living_types import LivingEmbedding
from tests.engine.living.texts import TEXT
from tests.engine.small_models import calibrated

if TYPE_CHECKING:
    from tests.conftest import WriteCheckpoint


@pytest.fixture(scope="module")
def record(engine: Engine) -> bytes:
    return engine.embed_document(TEXT, record=True).record


def forged(record: bytes, **numbers: object) -> bytes:
    """With other numbers in its second segment, and a checksum that fits."""
    header, tensors = record_bytes._opened(record)
    header["segments"][1].update(numbers)
    return sealed(header, tensors)


def forged_header(record: bytes, values: Mapping[str, object]) -> bytes:
    """With other values in its header, and a checksum that fits."""
    header, tensors = record_bytes._opened(record)
    header.update(values)
    return sealed(header, tensors)


def sealed(header: Mapping[str, object], tensors: dict[str, Tensor]) -> bytes:
    checksum = record_bytes._checksum(header, tensors)
    return save(tensors, {"lln": json.dumps({"header": header, "sha256": checksum})})


@pytest.mark.parametrize(
    "numbers",
    [
        {"num_characters": 0},  # would be found again and again at one place, without end
        {"num_characters": 10**9},
        {"num_sealed": 10**12},  # would be listed one by one
        {"num_sealed": -1},
        {"num_content": -(10**6)},
        {"num_rows": 0},
        {"num_rows": 1.5},
        {"view": 1},
        {"key": [0, "", False]},
        {"key": [10**6, 1, False]},
        {"num_chunks": True},
        {"num_alone": -1},
        {"headings": [[1]]},
    ],
)
def test_forged_records_are_refused(
    engine: Engine, record: bytes, numbers: dict[str, object]
) -> None:
    assert from_bytes(forged(record), engine.model).num_tokens > 0
    with pytest.raises(InvalidInput, match=r"not made by LLN"):
        from_bytes(forged(record, **numbers), engine.model)


PLAN = {"type": "fixed", "context": "late", "opening": None, "alone": None, "tokens": 64}


@pytest.mark.parametrize(
    "values",
    [
        {"precision": "float8"},  # would fail when the next record is made
        {"folded": "no"},
        {"prompt_name": 1},
        {"title": ["a"]},
        {"found_title": [0, "b"]},
        {"heading_format": "rst"},
        {"num_tokens": 1.5},
        {"chunking": PLAN | {"tokens": "many"}},
        {"chunking": PLAN | {"tokens": 0}},
        {"chunking": PLAN | {"alone": float("nan")}},
        {"chunking": PLAN | {"context": "whole"}},
        {"chunking": PLAN | {"spans": []}},
        {"chunking": PLAN | {"type": "spans"}},
        {"identity": []},
    ],
)
def test_forged_headers_are_refused(
    engine: Engine, record: bytes, values: dict[str, object]
) -> None:
    assert from_bytes(forged_header(record, {"chunking": PLAN}), engine.model).num_tokens > 0
    with pytest.raises(InvalidInput) as caught:
        from_bytes(forged_header(record, values), engine.model)
    assert (caught.value.code, caught.value.param) == ("invalid_record", "record")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("late", lambda x: x[:, :-1]),
        ("flat", lambda x: x[:1]),
        ("opening", lambda x: x[0]),
        ("chunks", lambda x: x.float()),
        ("chunks", lambda x: x[:, :3]),
        ("first.k.0", lambda x: x[..., :1]),  # would be broadcast
        ("last.v.1", lambda x: x[:, :1]),
        ("value.0", lambda x: x[..., :1]),
        ("log_mass.1", lambda x: x[:1]),
        ("view.share", lambda x: x[:, None]),
        ("view.share", lambda x: x.repeat(2)),
        ("view.mass", lambda x: x[:, :1]),
        ("view.values", lambda x: x[..., :1]),
        ("view.sinks", lambda x: x[..., :1]),
    ],
)
def test_records_with_other_shapes_are_refused(
    name: str, change: Callable[[Tensor], Tensor], engine: Engine, first: LivingEmbedding
) -> None:
    header, tensors = record_bytes._opened(first.record)
    tensors[name] = change(tensors[name]).contiguous()
    altered = sealed(header, tensors)
    with pytest.raises(InvalidInput, match=r"not made by LLN"):
        engine.update_document(altered, TEXT + " More.")


def test_damaged_records_are_refused(engine: Engine) -> None:
    record = engine.embed_document(TEXT[:2000], record=True).record
    damaged = [
        b"",
        record[:100],
        record[:-1],
        record[:-9] + b"\0" + record[-8:],
        record.replace(b'num_tokens\\":', b'num_tokens\\":1'),
        b"\xff" * 64,
    ]
    for data in damaged:
        with pytest.raises(InvalidInput, match=r"damaged") as caught:
            engine.update_document(data, TEXT)
        assert caught.value.code == "invalid_record"


def test_records_of_another_model_or_version_are_refused(
    engine: Engine, write_checkpoint: WriteCheckpoint
) -> None:
    record = engine.embed_document(TEXT[:2000], record=True).record
    other = Engine(calibrated(write_checkpoint("bert", seed=1), block_size=64, num_sinks=(1, 1)))
    with pytest.raises(InvalidInput) as caught:
        other.update_document(record, TEXT)
    assert caught.value.code == "record_of_another_model"
    newer = record.replace(b'version\\":%d' % VERSION, b'version\\":%d' % (VERSION + 1))
    assert newer != record
    with pytest.raises(InvalidInput) as caught:
        engine.update_document(newer, TEXT)
    assert caught.value.code == "record_version"
