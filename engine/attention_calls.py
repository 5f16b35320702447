"""What attention does with texts: diagnoses, maps, structure and claims, a step at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from engine.claims import ClaimRow, HeadSample, Material, find_claims, head_samples
from engine.claims.heads import MAX_TOKENS
from engine.claims.worker import checked_apart
from engine.core import DEFAULTS, EngineCore, Item
from engine.deadline import Deadline
from engine.diagnose import diagnosis_of, kept_between_instruments, readings_in_slices
from engine.diagnosis_plan import fit_plan, plan_diagnosis
from engine.layer_states import LayerStep, diagnosis_bytes, layer_steps
from engine.maps.document import (
    OpenDocument,
    check_reader,
    check_source,
    find_document,
    open_document,
)
from engine.maps.pauses import Pause
from engine.maps.plan import plan_map
from engine.maps.steps import map_steps
from engine.maps.walk import open_layer_steps, walk_bytes
from engine.model.embedding_model import EmbeddingModel
from engine.orders import Delivered
from engine.prepare import Prepared
from engine.reader import prepare_document
from engine.structure.plan import plan_structure
from engine.structure.steps import structure_steps
from engine.types import AttentionMap, Diagnosis, MapOptions, Structure


class _Walk(NamedTuple):
    """A text's way through the layers, as a diagnosis takes it."""

    prepared: Prepared
    layers: Iterator[LayerStep | None]
    num_bytes: int  # held on the way


class AttentionCalls(EngineCore):
    """What the engine tells of attention. Embeddings run in between its steps."""

    async def keep_open(self, text: str, *, model: str | None = None) -> OpenDocument:
        """Read a text once, to ask about its attention by its handle from then on."""
        with self._counting_rejections():
            return await self._opened(text, None, model)

    async def diagnose(
        self,
        text: str | None = None,
        *,
        document: str | None = None,
        model: str | None = None,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        instruments: Sequence[str] | None = None,
        mode: str = "auto",
        timeout_s: float | None = None,
    ) -> Diagnosis:
        """What every head and layer does with this text, or with a document opened before.
        Embeddings run between its steps."""
        deadline = Deadline(timeout_s)
        with self._counting_rejections():
            check_source(text, document)
            opened = None if document is None else self._find(document, model)
            chosen = self._model(model) if opened is None else opened.model
            asked = plan_diagnosis(chosen, layers, heads, instruments, mode)
            if opened is None:
                assert text is not None, "one of the two is given"
                walk = await _new_walk(text, chosen, deadline)
            else:
                walk = self._walk_of(opened)
            prepared = walk.prepared
            plan = fit_plan(asked, chosen, prepared.num_embedded, self.config)
        num_tokens = prepared.num_embedded
        slices = readings_in_slices(chosen, prepared, plan, walk.layers)
        num_bytes = walk.num_bytes + kept_between_instruments(chosen, num_tokens, plan.effort)
        done = await self._all_turns(slices, chosen, num_tokens, deadline, num_bytes=num_bytes)
        return diagnosis_of(chosen, prepared, plan, done)

    async def attention_map(
        self,
        text: str | None = None,
        *,
        options: MapOptions,
        document: str | None = None,
        model: str | None = None,
        timeout_s: float | None = None,
    ) -> AttentionMap:
        """A head's attention within a window, of a text or of a document opened before."""

        def begin(opened: OpenDocument) -> Iterator[Pause | AttentionMap]:
            return map_steps(opened, plan_map(opened, options, self.config), self._open)

        last = await self._last_of(begin, text, document, model, timeout_s)
        assert isinstance(last.value, AttentionMap), "the last step brings the map"
        return replace(last.value, queue_s=last.queue_s, compute_s=last.compute_s)

    async def structure(
        self,
        text: str | None = None,
        *,
        scales: Sequence[int] | None = None,
        document: str | None = None,
        model: str | None = None,
        timeout_s: float | None = None,
    ) -> Structure:
        """The parts of a text, or of a document opened before, at several scales."""

        def begin(opened: OpenDocument) -> Iterator[Pause | Structure]:
            return structure_steps(opened, plan_structure(opened, scales), self._open)

        last = await self._last_of(begin, text, document, model, timeout_s)
        assert isinstance(last.value, Structure), "the last step brings the structure"
        return last.value

    async def claims(
        self,
        *,
        only: Sequence[str] | None = None,
        text: str | None = None,
        model: str | None = None,
        thorough: bool = False,
        progress: Callable[[ClaimRow], None] | None = None,
    ) -> list[ClaimRow]:
        """What papers claim of attention, checked here, also on the heads that read `text`.

        Only those heads are computed on the device; the rest in a process of low priority.
        """
        with self._counting_rejections():
            chosen = self._model(model)
            claims = find_claims(only)
        heads: tuple[HeadSample, ...] = ()
        if text is not None:
            heads = await self.head_samples(text, model=chosen.name, every_head=thorough)
        rows: list[ClaimRow] = []
        async for row in checked_apart(claims, Material(heads=heads, thorough=thorough)):
            rows.append(row)
            if progress is not None:
                progress(row)
        return rows

    async def head_samples(
        self, text: str, *, model: str | None = None, every_head: bool = False
    ) -> tuple[HeadSample, ...]:
        """Queries and keys of heads that read the beginning of this text: one a layer, or all."""
        with self._counting_rejections():
            chosen = self._model(model)
            prepared = await asyncio.to_thread(prepare_document, text, chosen, DEFAULTS, None)
        layers = head_samples(chosen, prepared, every_head=every_head)
        steps = self._in_turns(layers, "diagnosis", chosen, MAX_TOKENS)
        return tuple([sample async for step in steps for sample in step.value])

    async def _last_of(
        self,
        begin: Callable[[OpenDocument], Iterator[Item]],
        text: str | None,
        handle: str | None,
        model: str | None,
        timeout_s: float | None,
    ) -> Delivered[Item]:
        """What the last of the steps brings that begin with this document, and what all took."""
        deadline = Deadline(timeout_s)
        with self._counting_rejections():
            async with deadline.over():
                opened = await self._opened(text, handle, model)
            steps = begin(opened)
        done = await self._all_turns(
            steps,
            opened.model,
            opened.num_tokens,
            deadline,
            num_bytes=walk_bytes(opened, self._open),
        )
        compute_s = sum(turn.compute_s for turn in done)
        return Delivered(done[-1].value, done[0].queue_s, compute_s)

    async def _opened(
        self, text: str | None, handle: str | None, model: str | None
    ) -> OpenDocument:
        check_source(text, handle)
        if handle is not None:
            return self._find(handle, model)
        assert text is not None, "one of the two is given"
        return await asyncio.to_thread(open_document, text, self._model(model), self._open)

    def _walk_of(self, opened: OpenDocument) -> _Walk:
        """Shorter than a new one, where the layers' states are kept."""
        layers = open_layer_steps(opened, self._open)
        return _Walk(opened.prepared, layers, walk_bytes(opened, self._open))

    def _find(self, handle: str, model: str | None) -> OpenDocument:
        found = find_document(self._open, handle)
        if model is not None:
            check_reader(found, self._model(model))
        return found


async def _new_walk(text: str, model: EmbeddingModel, deadline: Deadline) -> _Walk:
    async with deadline.over():
        prepared = await asyncio.to_thread(prepare_document, text, model, DEFAULTS, None)
    num_bytes = diagnosis_bytes(model.encoder, prepared.num_embedded)
    return _Walk(prepared, layer_steps(model, prepared), num_bytes)
