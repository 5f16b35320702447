"""What attention does with texts: diagnoses, maps and structure, a step at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from engine.analysis.attention_map import map_steps, plan_map
from engine.analysis.diagnosis import diagnosis_of, read_in_slices
from engine.analysis.diagnosis_plan import (
    DiagnosisPlan,
    fit_plan,
    instrument_bytes,
    matrix_bytes,
    plan_diagnosis,
)
from engine.analysis.document_states import (
    capture_layers_of,
    document_capture_bytes,
    project_layers_of,
)
from engine.analysis.layer_capture import ProjectedLayer, capture_bytes, capture_layers
from engine.analysis.open_document import (
    OpenDocument,
    check_reader,
    check_source,
    find_document,
    open_document,
)
from engine.analysis.segmentation import plan_structure, structure_steps
from engine.attention_types import SAMPLED_ROWS, AttentionMap, Diagnosis, MapOptions, Structure
from engine.calls.core import DEFAULTS, EngineCore, T
from engine.execution.documents import prepare_document_steps
from engine.execution.input_checks import check_input, check_text
from engine.execution.inputs import PreparedText
from engine.model.embedding_model import EmbeddingModel
from engine.scheduling.deadline import Deadline
from engine.scheduling.request import TimedResult
from engine.steps import Steps
from engine.text.truncation import never_truncated


class _Layers(NamedTuple):
    """The layers that a diagnosis reads."""

    layers: Iterator[Steps[ProjectedLayer]]
    num_bytes: int  # that reading them takes


class AnalysisCalls(EngineCore):
    """Looks into what attention does with texts. Embeddings run between two steps."""

    async def keep_open(self, text: str, *, model: str | None = None) -> OpenDocument:
        """Read a text once. Its handle then stands for it in further questions."""
        with self._counting_rejections():
            return await self._opened(text, None, model)

    async def prepare(self, text: str, *, model: str | None = None) -> PreparedText:
        """Check and tokenise one whole text, off the event loop and off the device."""
        with self._counting_rejections():
            return await self._prepared(text, self._model(model))

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
        sampled_rows: int = SAMPLED_ROWS,
        seed: int = 0,
        quantiles: Sequence[float] = (),
        timeout_s: float | None = None,
    ) -> Diagnosis:
        """What every head and layer does with this text, or with an open document."""
        deadline = Deadline(timeout_s)
        with self._counting_rejections():
            check_source(text, document)
            opened = None if document is None else self._find(document, model)
            chosen = self._model(model) if opened is None else opened.model
            asked = plan_diagnosis(
                chosen,
                layers,
                heads,
                instruments,
                mode,
                sampled_rows=sampled_rows,
                seed=seed,
                quantiles=quantiles,
            )
            async with deadline.over():
                prepared = await self._prepared_or_open(text, opened, chosen)
            num_tokens = prepared.num_embedded
            plan = fit_plan(asked, chosen, num_tokens, self.config)
        read = self._layers(prepared, opened, chosen, plan)
        steps = read_in_slices(chosen, prepared, plan, read.layers)
        num_bytes = read.num_bytes
        num_bytes += instrument_bytes(chosen, num_tokens, plan.effort)
        num_bytes += matrix_bytes(plan, num_tokens)
        result = await self._run_analysis(steps, chosen, num_tokens, deadline, num_bytes=num_bytes)
        return diagnosis_of(chosen, prepared, plan, result)

    async def attention_map(
        self,
        text: str | None = None,
        *,
        options: MapOptions,
        document: str | None = None,
        model: str | None = None,
        timeout_s: float | None = None,
    ) -> AttentionMap:
        """A head's attention within a window of this text, or of an open document."""

        def begin(opened: OpenDocument) -> Steps[AttentionMap]:
            return map_steps(opened, plan_map(opened, options, self.config), self._open)

        result = await self._analyse(begin, text, document, model, timeout_s)
        return replace(result.value, queue_s=result.queue_s, compute_s=result.compute_s)

    async def structure(
        self,
        text: str | None = None,
        *,
        scales: Sequence[int] | None = None,
        document: str | None = None,
        model: str | None = None,
        timeout_s: float | None = None,
    ) -> Structure:
        """The parts of this text, or of an open document, at several scales."""

        def begin(opened: OpenDocument) -> Steps[Structure]:
            return structure_steps(opened, plan_structure(opened, scales), self._open)

        return (await self._analyse(begin, text, document, model, timeout_s)).value

    async def _analyse(
        self,
        begin: Callable[[OpenDocument], Steps[T]],
        text: str | None,
        handle: str | None,
        model: str | None,
        timeout_s: float | None,
    ) -> TimedResult[T]:
        """Open the document, then run the steps that begin with it."""
        deadline = Deadline(timeout_s)
        with self._counting_rejections():
            async with deadline.over():
                opened = await self._opened(text, handle, model)
            steps = begin(opened)
        return await self._run_analysis(
            steps,
            opened.model,
            opened.num_tokens,
            deadline,
            num_bytes=document_capture_bytes(opened, self._open),
        )

    async def _prepared_or_open(
        self, text: str | None, opened: OpenDocument | None, model: EmbeddingModel
    ) -> PreparedText:
        if opened is not None:
            return opened.prepared
        assert text is not None, "one of the two is given"
        return await self._prepared(text, model)

    def _layers(
        self,
        text: PreparedText,
        opened: OpenDocument | None,
        model: EmbeddingModel,
        plan: DiagnosisPlan,
    ) -> _Layers:
        if opened is None:
            num_bytes = capture_bytes(model.encoder, text.num_embedded)
            return _Layers(capture_layers(model, text), num_bytes)
        # Cheaper than computing the layers where their states are cached.
        num_bytes = document_capture_bytes(opened, self._open)
        if plan.of_layers:
            return _Layers(capture_layers_of(opened, self._open, plan.seen_layers), num_bytes)
        return _Layers(project_layers_of(opened, self._open, plan.seen_layers), num_bytes)

    async def _prepared(self, text: str, model: EmbeddingModel) -> PreparedText:
        check_input(text, "text")
        steps = prepare_document_steps(text, model, DEFAULTS, None)
        with never_truncated():
            return await self._tokenise(steps, _num_tokens, characters=len(text))

    async def _opened(
        self, text: str | None, handle: str | None, model: str | None
    ) -> OpenDocument:
        check_source(text, handle)
        if handle is not None:
            return self._find(handle, model)
        assert text is not None, "one of the two is given"
        check_text(text, "text")
        steps = open_document(text, self._model(model), self._open)
        with never_truncated():
            return await self._tokenise(steps, _num_tokens, characters=len(text))

    def _find(self, handle: str, model: str | None) -> OpenDocument:
        found = find_document(self._open, handle)
        if model is not None:
            check_reader(found, self._model(model))
        return found


def _num_tokens(text: PreparedText | OpenDocument) -> int:
    return text.num_tokens
