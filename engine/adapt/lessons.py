"""What one step of each kind asks of a student: a batch drawn, and how far the student is off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.adapt.batches import Batch, TokenCorpus
from engine.adapt.objective import (
    attention_distance,
    contrast,
    distance,
    targets_of,
    unit_vectors,
    vector_distance,
    window_distance,
)
from engine.adapt.pairs import PairBatch, PairCorpus
from engine.adapt.stages import Stage, TrainingPlan
from engine.adapt.student import Student
from engine.adapt.vectors import pooling_of
from engine.model.embedding_model import EmbeddingModel
from engine.model.encoder import Encoder
from engine.model.pooling import PooledSpan, whole_texts

_REMEMBERED = 512
"""Vectors of earlier documents of a source that a query is shown as wrong answers."""
_ANCHOR_LENGTHS = (128, 256, 384, 512)
_ANCHOR_TOKENS = 2048


@dataclass(frozen=True)
class Lesson:
    loss: Tensor
    length: int
    tokens: int
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    """What the loss is made of, where that is more than one thing: "found", "kept" and "held"."""


class Lessons:
    """Draws batches for a stage and measures the student on them."""

    def __init__(
        self,
        teacher: EmbeddingModel,
        student: Student,
        windows: TokenCorpus,
        pairs: PairCorpus | None,
        plan: TrainingPlan,
    ) -> None:
        self._teacher = teacher.encoder
        self._pooling = pooling_of(teacher)
        self._window = window_of(teacher, plan)
        self._student = student
        self._windows = windows
        self._pairs = pairs
        self._plan = plan
        self._remembered: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def memory(self) -> dict[str, Any]:
        """What the next steps need of the ones before, to be saved with the run."""
        return {str(source): list(seen) for source, seen in self._remembered.items()}

    def recall(self, memory: dict[str, Any]) -> None:
        self._remembered = {int(source): (seen[0], seen[1]) for source, seen in memory.items()}

    def give(self, stage: Stage, generator: np.random.Generator) -> Lesson:
        length = int(generator.choice(stage.lengths))
        if stage.kind == "pairs":
            return self._find(stage, length, generator)
        batch = self._windows.batch(length, stage.batch_tokens // length, generator)
        if stage.kind == "contrast":
            return self._contrast(stage, batch, length, generator)
        return Lesson(self._imitate(stage, batch), length, len(batch.ids))

    def _imitate(self, stage: Stage, batch: Batch) -> Tensor:
        student = self._student.encoder()
        if stage.kind == "attention":
            return attention_distance(student, self._teacher, batch)
        targets = targets_of(self._teacher, batch, self._window, self._pooling)
        return distance(student, batch, targets, self._plan.loss, self._pooling)

    def _contrast(
        self, stage: Stage, batch: Batch, length: int, generator: np.random.Generator
    ) -> Lesson:
        student = self._student.encoder()
        queries, documents = cut_queries(batch, stage.query_tokens, generator)
        read = self._read(student, documents)
        targets = targets_of(self._teacher, documents, self._window, self._pooling)
        kept = self._plan.loss.vectors * (1 - (read * targets.vectors).sum(-1)).mean()
        found = contrast(self._read(student, queries), read)
        return _of_parts(stage, length, len(batch.ids), found=found, kept=kept)

    def _find(self, stage: Stage, length: int, generator: np.random.Generator) -> Lesson:
        """Queries find their documents or passages, and short texts stay what they were."""
        pairs = self._pairs
        assert pairs is not None, "checked when the run began"
        in_passages = pairs.has_passages and generator.random() < stage.passage_share
        passages = pairs.passages(length, stage.batch_tokens, generator) if in_passages else None
        batch = passages or pairs.documents(
            length,
            stage.batch_tokens,
            generator,
            cut_share=stage.cut_share,
            stretches=stage.stretches,
            shortest=stage.shortest,
        )
        student = self._student.encoder()
        queries = self._read(student, batch.queries)
        states = student(batch.documents.ids.to(student.device), batch.documents.bounds)
        if passages:
            spans = [PooledSpan(*span) for span in batch.spans]
            candidates = self._unit(states, spans)
            found = contrast(queries, candidates, torch.tensor(batch.wanted, device=queries.device))
        else:
            spans = whole_texts(batch.documents.bounds, self._student.rise_of)
            found = self._told_apart(batch, queries, self._unit(states, spans))
        unmoved = 1 - (queries * self._teachers(batch.queries)).sum(-1)
        anchors = self._anchors(generator)
        moved = self._read(student, anchors)
        kept = vector_distance(moved, self._teachers(anchors), self._plan.loss)
        kept = kept + self._plan.loss.vectors * unmoved.mean()
        read = (batch.documents, batch.queries, batch.stretches, anchors)
        tokens = sum(len(one.ids) for one in read if one is not None)
        parts = {"found": found, "kept": kept}
        if stage.held_share and not passages:
            parts["held"] = self._plan.loss.vectors * window_distance(
                states, self._teacher, batch.documents, self._window, self._pooling
            )
        return _of_parts(stage, length, tokens, **parts)

    def _told_apart(self, batch: PairBatch, queries: Tensor, documents: Tensor) -> Tensor:
        """Each query's own document, and each stretch's, against the others of the batch and some
        of those before."""
        device = queries.device
        owners = torch.tensor(batch.owners, device=device)
        seen = documents.detach()
        before, whose = self._remembered.get(batch.source, (seen[:0], owners[:0]))
        candidates = torch.cat([documents, before])

        def missed(asking: Tensor, wanted: Sequence[int]) -> Tensor:
            own = torch.tensor(wanted, device=device)
            alike = torch.zeros(len(own), len(documents), dtype=torch.bool, device=device)
            hidden = torch.cat([alike, owners[own, None] == whose], dim=1)
            return contrast(asking, candidates, own, hidden)

        losses = [missed(queries, batch.wanted)]
        if batch.stretches is not None:
            losses.append(missed(self._teachers(batch.stretches), batch.stretched))
        self._remembered[batch.source] = (
            torch.cat([seen, before])[:_REMEMBERED],
            torch.cat([owners, whose])[:_REMEMBERED],
        )
        return torch.stack(losses).mean()

    def _anchors(self, generator: np.random.Generator) -> Batch:
        lengths = anchor_lengths(min(self._plan.teacher_window, self._windows.longest))
        length = int(generator.choice(lengths))
        return self._windows.batch(length, max(_ANCHOR_TOKENS // length, 2), generator)

    def _teachers(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            return self._vectors(self._teacher, batch, whole_texts(batch.bounds))

    def _read(self, student: Encoder, batch: Batch) -> Tensor:
        """The student's vectors of whole texts, pooled as they will be when it is served."""
        return self._vectors(student, batch, whole_texts(batch.bounds, self._student.rise_of))

    def _vectors(self, encoder: Encoder, batch: Batch, spans: Sequence[PooledSpan]) -> Tensor:
        states = encoder(batch.ids.to(encoder.device), batch.bounds)
        return self._unit(states, spans)

    def _unit(self, states: Tensor, spans: Sequence[PooledSpan]) -> Tensor:
        return unit_vectors(states, spans, self._pooling)


def window_of(teacher: EmbeddingModel, plan: TrainingPlan) -> int:
    """Tokens that the teacher reads in one piece where it is imitated. One whose positions are
    angles, not a table, gives all that it was trained to read as it gives a short text."""
    if teacher.encoder.weights.positions is None:
        return max(plan.teacher_window, teacher.info.position_table)
    return plan.teacher_window


def anchor_lengths(window: int) -> list[int]:
    """Of the short texts whose vectors should stay, where the teacher reads so many tokens."""
    return [length for length in _ANCHOR_LENGTHS if length <= window] or [window]


def _of_parts(stage: Stage, length: int, tokens: int, **parts: Tensor) -> Lesson:
    shares = {"found": 1.0, "kept": stage.fidelity_share, "held": stage.held_share}
    loss = torch.stack([shares[name] * part for name, part in parts.items()]).sum()
    return Lesson(loss, length, tokens, parts)


def cut_queries(batch: Batch, size: int, generator: np.random.Generator) -> tuple[Batch, Batch]:
    """A stretch taken out of each text, between the text's own special tokens, and the rest."""
    queries: list[Tensor] = []
    rests: list[Tensor] = []
    for first, end in batch.spans:
        start = int(generator.integers(first + 1, end - 1 - size))
        ids, stretch = batch.ids, slice(start, start + size)
        queries += [ids[first : first + 1], ids[stretch], ids[end - 1 : end]]
        rests += [ids[first:start], ids[start + size : end]]
    length = batch.bounds[1] - size
    count = len(batch.spans)
    return (
        Batch(torch.cat(queries), list(range(0, count * (size + 2) + 1, size + 2))),
        Batch(torch.cat(rests), list(range(0, count * length + 1, length))),
    )
