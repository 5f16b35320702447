"""Runs the linked passages of a document through the model."""

from __future__ import annotations

from engine.execution.linked_text import LinkedText
from engine.execution.model_runner import TiledRun
from engine.model.linked_pass import LinkedPass
from engine.model.pooling import PooledSpan
from engine.model.tiled_pass import TiledPass
from engine.types import Vector


class LinkedRun(TiledRun):
    """`result` holds a vector of each passage, and none of the whole."""

    def _open_pass(self, *, keep_projections: bool) -> TiledPass:
        text = self._linked
        return LinkedPass(
            *(self._model.encoder, text.ids, text.bounds),
            around=text.around,
            keep_projections=keep_projections,
        )

    def _pooled_spans(self) -> list[PooledSpan]:
        whole, *passages = self._linked.spans
        return [PooledSpan(*span) for span in (*passages, whole)]

    def _finished(self) -> Vector:
        return super()._finished()[1:]

    @property
    def _linked(self) -> LinkedText:
        assert isinstance(self._text, LinkedText)
        return self._text
