"""A record as its caller keeps it: bytes that are read back only by the model that made them.

The bytes are a safetensors file: nothing in it is executed. Its metadata say which model, which
calibration and which chunks it is of, and a checksum covers everything else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from engine.errors import InvalidInput
from engine.living.record import DocumentRecord, KeptSegment, SegmentVectors, identity_of
from engine.living.record_header import check_header
from engine.living.record_shapes import check_shapes
from engine.living.staleness import View
from engine.model.embedding_model import EmbeddingModel
from engine.model.segmented_pass import LayerStates, SinkRows
from engine.text.chunking import ChunkSpan, check_chunking
from engine.text.segments import SegmentKey
from engine.text.titles import Titles
from engine.types import Chunking, ChunkPlan, HeadingPlan, SentencePlan, Span
from kernels.attention import LLNState

VERSION = 3
"""The version of the format. A record of another version is refused."""

MAX_RECORD_BYTES = 1 << 30

_PLANS: Mapping[str, type[ChunkPlan | SentencePlan | HeadingPlan]] = {
    "fixed": ChunkPlan,
    "sentences": SentencePlan,
    "sections": HeadingPlan,
}
_SKETCHES = ("mass", "values", "sinks")  # fields of a view
_DTYPES = {"float32": torch.float32, "float16": torch.float16}


def to_bytes(record: DocumentRecord) -> bytes:
    """The record as its caller keeps it."""
    tensors = dict(_tensors(record))
    header = _header(record)
    # One entry: the library writes several in any order.
    lln = _as_json({"header": header, "sha256": _checksum(header, tensors)})
    return save(tensors, {"lln": lln})


def from_bytes(data: bytes, model: EmbeddingModel) -> DocumentRecord:
    """Reads a record of this model. Raises if it is damaged, or of another model or version."""
    if len(data) > MAX_RECORD_BYTES:
        raise _refused(
            f"the record has {len(data)} bytes, the limit is {MAX_RECORD_BYTES}",
            limit=MAX_RECORD_BYTES,
            actual=len(data),
        )
    header, tensors = _opened(data)
    _check_identity(header, model)
    try:
        if header["num_layers"] != len(model.encoder.weights.layers):
            raise ValueError("the model has another number of layers")
        check_header(header, len(tensors["view.share"]))
        check_shapes(tensors, model, len(header["segments"]))
        return _record(header, tensors)
    except (InvalidInput, KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise _refused(f"the record was not made by LLN: {type(error).__name__}") from None


def _opened(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    damaged = "the record is damaged (cut short or altered); read the document again without it"
    try:
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length])["__metadata__"]
        lln = json.loads(metadata["lln"])
        header, checksum = lln["header"], lln["sha256"]
        tensors = load(data)
        version = header["version"]
    except (ValueError, KeyError, TypeError, SafetensorError, MemoryError, OverflowError):
        raise _refused(damaged) from None
    if version != VERSION:
        raise _refused(
            f"the record has version {version}, and this server reads {VERSION}; read the document "
            "again without it",
            code="record_version",
            limit=VERSION,
            actual=version,
        )
    if checksum != _checksum(header, tensors):
        raise _refused(damaged)
    return header, tensors


def _check_identity(header: Mapping[str, Any], model: EmbeddingModel) -> None:
    identity = header.get("identity")
    if not isinstance(identity, dict):
        raise _refused("the record does not say of which model it is")
    for name, own in identity_of(model).items():
        found = identity.get(name)
        if found != own:
            raise _refused(
                f"the record was made with {name} {found}, and {model.name} has {own}; read the "
                "document again without it",
                code="record_of_another_model",
                limit=own,
                actual=str(found),
            )


def _refused(
    message: str,
    *,
    code: str = "invalid_record",
    limit: int | str | None = None,
    actual: int | str | None = None,
) -> InvalidInput:
    return InvalidInput(message, code=code, param="record", limit=limit, actual=actual)


def _as_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _checksum(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    digest = sha256(_as_json(header).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# To tensors and metadata


def _tensors(record: DocumentRecord) -> list[tuple[str, Tensor]]:
    segments = record.segments
    vectors = [segment.vectors for segment in segments]
    tensors: list[tuple[str, NDArray[Any] | Tensor]] = [
        *_named_sinks("first", record.first_sinks),
        *_named_sinks("last", record.last_sinks),
        ("opening", record.opening),
        ("late", np.concatenate([one.late for one in vectors])),
        ("alone", np.concatenate([one.alone for one in vectors])),
        ("flat", np.stack([one.flat for one in vectors])),
        ("rising", np.stack([one.rising for one in vectors])),
        ("chunks", _bounds_of_chunks(segments)),
        ("view.share", np.array([view.share for view in record.views])),
    ]
    for name in _SKETCHES:
        sketches = np.stack([getattr(view, name) for view in record.views])
        tensors.append((f"view.{name}", torch.from_numpy(sketches).half()))
    dtype = _DTYPES[record.precision]
    for layer in _layers_with_states(segments):
        states = [segment.states[layer] for segment in segments]
        found = [state for state in states if state is not None]
        tensors.append((f"log_mass.{layer}", torch.cat([state.log_mass for state in found])))
        value = torch.cat([state.value for state in found])
        tensors.append((f"value.{layer}", value.to(dtype)))
    return [(name, torch.as_tensor(values).detach().cpu().contiguous()) for name, values in tensors]


def _named_sinks(end: str, sinks: SinkRows) -> Iterator[tuple[str, Tensor]]:
    for part, layers in zip(("k", "v"), sinks, strict=True):
        for layer, rows in enumerate(layers):
            yield f"{end}.{part}.{layer}", rows


def _sinks_of(end: str, tensors: Mapping[str, Tensor], num_layers: int) -> SinkRows:
    k, v = (tuple(tensors[f"{end}.{part}.{layer}"] for layer in range(num_layers)) for part in "kv")
    return SinkRows(k, v)


def _layers_with_states(segments: Sequence[KeptSegment]) -> list[int]:
    """Whether LLN has a share depends on the layer and the document's length alone."""
    return [layer for layer, state in enumerate(segments[0].states) if state is not None]


def _bounds_of_chunks(segments: Sequence[KeptSegment]) -> NDArray[np.int64]:
    bounds = [(*chunk.tokens, *chunk.characters) for one in segments for chunk in one.chunks]
    return np.array(bounds, dtype=np.int64).reshape(-1, 4)


def _header(record: DocumentRecord) -> dict[str, Any]:
    return {
        "version": VERSION,
        "identity": dict(record.identity),
        "prompt_name": record.prompt_name,
        "chunking": _chunking_as_json(record.chunking),
        "title": record.titles.told,
        "found_title": record.titles.found,
        "num_tokens": record.num_tokens,
        "block_size": record.block_size,
        "precision": record.precision,
        "folded": record.folded,
        "heading_format": record.heading_format,
        "num_layers": len(record.segments[0].states),
        "segments": [
            {
                "key": list(segment.key),
                "num_characters": segment.num_characters,
                "num_rows": segment.num_rows,
                "num_content": segment.num_content,
                "num_chunks": len(segment.chunks),
                "headings": [list(chunk.headings) for chunk in segment.chunks],
                "num_alone": len(segment.vectors.alone),
                "num_sealed": segment.num_sealed,
                "view": segment.view,
            }
            for segment in record.segments
        ],
    }


def _chunking_as_json(plan: Chunking | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    (kind,) = (name for name, of in _PLANS.items() if isinstance(plan, of))
    return {"type": kind, **asdict(plan)}


# And back


def _record(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> DocumentRecord:
    plan = header["chunking"]
    return DocumentRecord(
        identity=header["identity"],
        prompt_name=header["prompt_name"],
        chunking=None if plan is None else _chunking_of(plan),
        titles=_titles(header),
        num_tokens=int(header["num_tokens"]),
        block_size=int(header["block_size"]),
        first_sinks=_sinks_of("first", tensors, header["num_layers"]),
        last_sinks=_sinks_of("last", tensors, header["num_layers"]),
        opening=tensors["opening"].numpy(),
        views=tuple(_views(tensors)),
        segments=tuple(_segments(header, tensors)),
        precision=header["precision"],
        folded=header["folded"],
        heading_format=header.get("heading_format"),
    )


def _views(tensors: Mapping[str, Tensor]) -> Iterator[View]:
    sketches = (tensors[f"view.{name}"].float().numpy() for name in _SKETCHES)
    shares = tensors["view.share"].tolist()
    for mass, values, sinks, share in zip(*sketches, shares, strict=True):
        yield View(mass, values, sinks, share)


def _titles(header: Mapping[str, Any]) -> Titles:
    found = header["found_title"]
    return Titles(header["title"], None if found is None else Span(*found))


def _chunking_of(plan: Mapping[str, Any]) -> Chunking:
    fields = {name: value for name, value in plan.items() if name != "type"}
    chunking = _PLANS[plan["type"]](**fields)
    check_chunking(chunking)
    return chunking


def _segments(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[KeptSegment]:
    late, alone, chunks = (tensors[name].numpy() for name in ("late", "alone", "chunks"))
    flat, rising = tensors["flat"].numpy(), tensors["rising"].numpy()
    segments, at, at_alone = [], 0, 0
    for index, described in enumerate(header["segments"]):
        end, end_alone = at + described["num_chunks"], at_alone + described["num_alone"]
        seen, digest, sees_end = described["key"]
        segments.append(
            KeptSegment(
                key=SegmentKey(seen, digest, sees_end),
                num_characters=described["num_characters"],
                num_rows=described["num_rows"],
                num_content=described["num_content"],
                chunks=tuple(
                    ChunkSpan(Span(*map(int, row[:2])), Span(*map(int, row[2:])), tuple(headings))
                    for row, headings in zip(chunks[at:end], described["headings"], strict=True)
                ),
                vectors=SegmentVectors(
                    late[at:end], alone[at_alone:end_alone], flat[index], rising[index]
                ),
                states=_states(index, header["num_layers"], tensors),
                view=described["view"],
                num_sealed=described["num_sealed"],
            )
        )
        at, at_alone = end, end_alone
    if at != len(late) or at_alone != len(alone) or not segments:
        raise ValueError("counts of chunks and vectors differ")
    return segments


def _states(segment: int, num_layers: int, tensors: Mapping[str, Tensor]) -> LayerStates:
    def of(layer: int) -> LLNState | None:
        if f"value.{layer}" not in tensors:
            return None
        rows = slice(segment, segment + 1)
        return LLNState(tensors[f"log_mass.{layer}"][rows], tensors[f"value.{layer}"][rows].float())

    return tuple(map(of, range(num_layers)))
