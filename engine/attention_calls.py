"""What attention does with texts: diagnoses, maps, structure and claims, a step at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from engine.claims import ClaimRow, HeadSample, Material, find_claims, head_samples
from engine.claims.heads import MAX_TOKENS
from engine.claims.worker import checked_apart
from engine.core import DEFAULTS, EngineCore, Item
from engine.deadline import Deadline
from engine.diagnose import diagnosis_of, readings_in_slices
from engine.diagnosis_plan import fit_plan, plan_diagnosis
from engine.layer_states import diagnosis_bytes, layer_steps
from engine.maps.document import (
    OpenDocument,
    check_reader,
    check_source,
    find_document,
    open_document,
)
from engine.maps.plan import plan_map
from engine.maps.steps import map_steps
from engine.maps.walk import open_layer_steps, walk_bytes
from engine.orders import Delivered
from engine.reader import prepare_document
from engine.structure.plan import plan_structure
from engine.structure.steps import structure_steps
from engine.types import AttentionMap, Diagnosis, MapOptions, Structure


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
            if opened is not None:
                prepared, walk = opened.prepared, open_layer_steps(opened, self._open)
            else:
                assert text is not None, "one of the two is given"
                async with deadline.over():
                    prepared = await asyncio.to_thread(
                        prepare_document, text, chosen, DEFAULTS, None
                    )
                walk = layer_steps(chosen, prepared)
            plan = fit_plan(asked, chosen, prepared.num_embedded, self.config)
        slices = readings_in_slices(chosen, prepared, plan, walk)
        if opened is None:
            num_bytes = diagnosis_bytes(chosen.encoder, prepared.num_embedded)
        else:
            num_bytes = walk_bytes(opened, self._open)
        done = await self._all_turns(
            slices, chosen, prepared.num_embedded, deadline, num_bytes=num_bytes
        )
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
        deadline = Deadline(timeout_s)
        with self._counting_rejections():
            async with deadline.over():
                opened = await self._opened(text, document, model)
            plan = plan_map(opened, options, self.config)
        steps = map_steps(opened, plan, self._open)
        done, found = await self._last_of(steps, opened, deadline)
        assert isinstance(found, AttentionMap), "the last step brings the map"
        return replace(found, queue_s=done.queue_s, compute_s=done.compute_s)

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
        deadline = Deadline(timeout_s)
        with self._counting_rejections():
            async with deadline.over():
                opened = await self._opened(text, document, model)
            plan = plan_structure(opened, scales)
        steps = structure_steps(opened, plan, self._open)
        done, found = await self._last_of(steps, opened, deadline)
        assert isinstance(found, Structure), "the last step brings the structure"
        return replace(found, queue_s=done.queue_s, compute_s=done.compute_s)

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
        self, steps: Iterator[Item], document: OpenDocument, deadline: Deadline
    ) -> tuple[Delivered[None], Item]:
        """What the last of these steps on the device brings, and what all of them took."""
        done = await self._all_turns(
            steps,
            document.model,
            document.num_tokens,
            deadline,
            num_bytes=walk_bytes(document, self._open),
        )
        compute_s = sum(turn.compute_s for turn in done)
        return Delivered(None, done[0].queue_s, compute_s), done[-1].value

    async def _opened(
        self, text: str | None, handle: str | None, model: str | None
    ) -> OpenDocument:
        check_source(text, handle)
        if handle is not None:
            return self._find(handle, model)
        assert text is not None, "one of the two is given"
        return await asyncio.to_thread(open_document, text, self._model(model), self._open)

    def _find(self, handle: str, model: str | None) -> OpenDocument:
        found = find_document(self._open, handle)
        if model is not None:
            check_reader(found, self._model(model))
        return found
