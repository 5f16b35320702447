"""The training steps: each kind draws a batch and measures the student's loss on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from engine.model.embedding_model import EmbeddingModel
from engine.model.encoder import Encoder
from engine.model.pooling import PooledSpan, whole_texts
from engine.model.weight_overrides import dense
from engine.training.chunks import ChunkBatch
from engine.training.document_memory import DocumentMemory
from engine.training.encode import pooling_of, teacher_window
from engine.training.linked import linked_states
from engine.training.losses import (
    any_loss,
    attention_loss,
    chunk_losses,
    chunk_targets,
    fidelity_loss,
    retrieval_loss,
    states_loss,
    teacher_targets,
    unit_vectors,
    window_loss,
)
from engine.training.pairs import PairBatch
from engine.training.questions import QuestionBatch
from engine.training.recipe import Stage, TrainingPlan
from engine.training.student import Student
from engine.training.token_corpus import Batch
from engine.training.training_corpora import TrainingCorpora
from engine.types import Precision

_ANCHOR_LENGTHS = (128, 256, 384, 512)
_ANCHOR_TOKENS = 2048


@dataclass(frozen=True)
class StepLoss:
    loss: Tensor
    length: int
    tokens: int
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    """What the loss is a weighted sum of, if of several: "retrieval", "fidelity", "window",
    "context"."""


class TrainingSteps:
    """Draws batches for a stage and measures the student on them."""

    def __init__(
        self,
        teacher: EmbeddingModel,
        student: Student,
        corpora: TrainingCorpora,
        plan: TrainingPlan,
    ) -> None:
        self._teacher = _as_precise(teacher.encoder, plan.precision)
        self._pooling = pooling_of(teacher)
        self._window = teacher_window(teacher, plan.teacher_window)
        self._student = student
        self._corpora = corpora
        self._plan = plan
        self.memory = DocumentMemory()

    def loss(self, stage: Stage, generator: np.random.Generator) -> StepLoss:
        length = int(generator.choice(stage.lengths))
        match stage.kind:
            case "attention":
                return self._attention_step(stage, length, generator)
            case "states":
                return self._states_step(stage, length, generator)
            case "contrast":
                return self._contrast_step(stage, length, generator)
            case "pairs":
                return self._pairs_step(stage, length, generator)
            case "chunks":
                return self._chunks_step(stage, length, generator)
            case "questions":
                return self._questions_step(stage, length, generator)

    def _attention_step(
        self, stage: Stage, length: int, generator: np.random.Generator
    ) -> StepLoss:
        """The student's attention should give what the teacher's gives."""
        batch = self._draw_windows(stage, length, generator)
        loss = attention_loss(self._student.encoder(), self._teacher, batch)
        return StepLoss(loss, length, len(batch.ids))

    def _states_step(self, stage: Stage, length: int, generator: np.random.Generator) -> StepLoss:
        """The student's states should be the teacher's."""
        batch = self._draw_windows(stage, length, generator)
        student = self._student.encoder()
        targets = teacher_targets(self._teacher, batch, self._window, self._pooling)
        loss = states_loss(student, batch, targets, self._plan.loss, self._pooling)
        return StepLoss(loss, length, len(batch.ids))

    def _contrast_step(self, stage: Stage, length: int, generator: np.random.Generator) -> StepLoss:
        """A stretch cut out of a window should find the rest of its window."""
        batch = self._draw_windows(stage, length, generator)
        student = self._student.encoder()
        queries, documents = cut_queries(batch, stage.query_tokens, generator)
        vectors = self._student_vectors(student, documents)
        targets = teacher_targets(self._teacher, documents, self._window, self._pooling)
        fidelity = self._plan.loss.vectors * (1 - (vectors * targets.vectors).sum(-1)).mean()
        retrieval = retrieval_loss(self._student_vectors(student, queries), vectors)
        return _weighted(
            stage, length, len(batch.ids), {"retrieval": retrieval, "fidelity": fidelity}
        )

    def _pairs_step(self, stage: Stage, length: int, generator: np.random.Generator) -> StepLoss:
        """Queries should find passages in some steps, whole documents in the others."""
        pairs = self._corpora.pairs
        assert pairs is not None, "checked when the run began"
        if pairs.has_passages and generator.random() < stage.passage_share:
            passages = pairs.passages(length, stage.batch_tokens, generator)
            if passages is not None:
                return self._passage_step(stage, length, passages, generator)
        documents = pairs.documents(
            length,
            stage.batch_tokens,
            generator,
            cut_share=stage.cut_share,
            stretches=stage.stretches,
            shortest=stage.shortest,
        )
        return self._document_step(stage, length, documents, generator)

    def _passage_step(
        self, stage: Stage, length: int, batch: PairBatch, generator: np.random.Generator
    ) -> StepLoss:
        student = self._student.encoder()
        queries = self._student_vectors(student, batch.queries)
        states = student(batch.documents.ids.to(student.device), batch.documents.bounds)
        spans = [PooledSpan(*span) for span in batch.spans]
        passages = unit_vectors(states, spans, self._pooling)
        targets = torch.tensor(batch.targets, device=queries.device)
        retrieval = retrieval_loss(queries, passages, targets)
        fidelity, anchors = self._short_text_fidelity(
            stage, student, batch.queries, queries, generator
        )
        return _weighted(
            stage,
            length,
            _num_tokens(batch.documents, batch.queries, anchors),
            {"retrieval": retrieval, "fidelity": fidelity},
        )

    def _document_step(
        self, stage: Stage, length: int, batch: PairBatch, generator: np.random.Generator
    ) -> StepLoss:
        student = self._student.encoder()
        queries = self._student_vectors(student, batch.queries)
        states = student(batch.documents.ids.to(student.device), batch.documents.bounds)
        spans = whole_texts(batch.documents.bounds, self._student.pooling_slope_of)
        documents = unit_vectors(states, spans, self._pooling)
        retrieval = self._document_retrieval(batch, queries, documents)
        fidelity, anchors = self._short_text_fidelity(
            stage, student, batch.queries, queries, generator
        )
        parts = {"retrieval": retrieval, "fidelity": fidelity}
        if stage.held_share:
            parts["window"] = self._plan.loss.vectors * window_loss(
                states, self._teacher, batch.documents, self._window, self._pooling
            )
        tokens = _num_tokens(batch.documents, batch.queries, batch.stretches, anchors)
        return _weighted(stage, length, tokens, parts)

    def _chunks_step(self, stage: Stage, length: int, generator: np.random.Generator) -> StepLoss:
        """Chunks read in their document should be near what the teacher makes of each alone and of
        the document's context, and nearer to it than to that of any other chunk."""
        corpus = self._corpora.chunks
        assert corpus is not None, "checked when the run began"
        batch = corpus.batch(length, stage.batch_tokens, stage.shortest, generator)
        student = self._student.encoder()
        chunks = self._chunk_vectors(student, batch, linked=stage.linked)
        targets = chunk_targets(
            self._teacher_vectors(batch.alone),
            self._teacher_vectors(batch.contexts),
            torch.tensor(batch.owners, device=chunks.device),
            context_share=stage.context_share,
            mean_share=stage.mean_share,
        )
        parts = chunk_losses(chunks, targets, self._plan.loss)
        anchors = None
        if self._student.plan.encoder:  # else short texts cannot move
            short = self._student_vectors(student, batch.contexts)
            parts["fidelity"], anchors = self._short_text_fidelity(
                stage, student, batch.contexts, short, generator
            )
        tokens = _num_tokens(batch.documents, batch.contexts, anchors)
        return _weighted(stage, length, tokens, parts)

    def _questions_step(
        self, stage: Stage, length: int, generator: np.random.Generator
    ) -> StepLoss:
        """Questions should find their passages, and paragraphs any passage of their document, as
        passages will be served: with a share of the title."""
        corpus = self._corpora.questions
        assert corpus is not None, "checked when the run began"
        batch = corpus.batch(length, stage.batch_tokens, stage.shortest, generator)
        student = self._student.encoder()
        read = self._chunk_vectors(student, batch, linked=stage.linked)
        owners = torch.tensor(batch.owners, device=read.device)
        is_title = torch.zeros(len(read), dtype=torch.bool, device=read.device)
        is_title[batch.titles] = True
        served = F.normalize(read + stage.title_share * read[is_title][owners], dim=-1)

        def of_questions(asking: Tensor) -> Tensor:
            targets = torch.tensor(batch.targets, device=read.device)
            return retrieval_loss(asking, served, targets, is_title.expand(len(asking), -1))

        def of_paragraphs(asking: Tensor) -> Tensor:
            own = torch.tensor(batch.sources, device=read.device)[:, None] == owners
            return any_loss(asking, served[~is_title], own[:, ~is_title])

        found, kept, tokens = [], [], _num_tokens(batch.documents)
        asked = ((batch.questions, of_questions), (batch.paragraphs, of_paragraphs))
        for queries, loss in asked:
            if queries is None:
                continue
            vectors = self._student_vectors(student, queries)
            found.append(loss(vectors))
            fidelity, anchors = self._short_text_fidelity(
                stage, student, queries, vectors, generator
            )
            kept.append(fidelity)
            tokens += _num_tokens(queries, anchors)
        parts = {"retrieval": torch.stack(found).mean(), "fidelity": torch.stack(kept).mean()}
        return _weighted(stage, length, tokens, parts)

    def _chunk_vectors(
        self, student: Encoder, batch: ChunkBatch | QuestionBatch, *, linked: bool
    ) -> Tensor:
        if linked:
            states, spans = linked_states(student, batch), whole_texts(batch.alone.bounds)
        else:
            states = student(batch.documents.ids.to(student.device), batch.documents.bounds)
            spans = [PooledSpan(*span) for span in batch.spans]
        return unit_vectors(states, spans, self._pooling)

    def _document_retrieval(self, batch: PairBatch, queries: Tensor, documents: Tensor) -> Tensor:
        """Queries and stretches should find their document among those of this step and of earlier
        steps. Earlier vectors of the same document are no wrong answers."""
        device = queries.device
        owners = torch.tensor(batch.owners, device=device)
        earlier, earlier_owners = self.memory.of(batch.source, documents, owners)
        candidates = torch.cat([documents, earlier])

        def loss(asking: Tensor, wanted: Sequence[int]) -> Tensor:
            own = torch.tensor(wanted, device=device)
            in_step = torch.zeros(len(own), len(documents), dtype=torch.bool, device=device)
            hidden = torch.cat([in_step, owners[own, None] == earlier_owners], dim=1)
            return retrieval_loss(asking, candidates, own, hidden)

        losses = [loss(queries, batch.targets)]
        if batch.stretches is not None:
            losses.append(loss(self._teacher_vectors(batch.stretches), batch.stretch_targets))
        self.memory.add(batch.source, documents, owners)
        return torch.stack(losses).mean()

    def _short_text_fidelity(
        self,
        stage: Stage,
        student: Encoder,
        queries: Batch,
        vectors: Tensor,
        generator: np.random.Generator,
    ) -> tuple[Tensor, Batch]:
        """How far short texts have moved from the teacher's vectors: the queries, of which the
        student's vectors are given, and windows drawn for it (anchors), which are returned."""
        moved = 1 - (vectors * self._teacher_vectors(queries)).sum(-1)
        lengths = anchor_lengths(min(self._plan.teacher_window, self._corpora.windows.longest))
        length = int(generator.choice(lengths))
        tokens = min(_ANCHOR_TOKENS, stage.batch_tokens // 4)
        anchors = self._corpora.windows.batch(length, max(tokens // length, 2), generator)
        found = self._student_vectors(student, anchors)
        fidelity = fidelity_loss(found, self._teacher_vectors(anchors), self._plan.loss)
        return fidelity + self._plan.loss.vectors * moved.mean(), anchors

    def _draw_windows(self, stage: Stage, length: int, generator: np.random.Generator) -> Batch:
        return self._corpora.windows.batch(length, stage.batch_tokens // length, generator)

    @torch.no_grad()
    def _teacher_vectors(self, batch: Batch) -> Tensor:
        states = self._teacher(batch.ids.to(self._teacher.device), batch.bounds)
        return unit_vectors(states, whole_texts(batch.bounds), self._pooling)

    def _student_vectors(self, student: Encoder, batch: Batch) -> Tensor:
        """Vectors of whole texts, pooled as they will be when the model is served."""
        states = student(batch.ids.to(student.device), batch.bounds)
        spans = whole_texts(batch.bounds, self._student.pooling_slope_of)
        return unit_vectors(states, spans, self._pooling)


def _as_precise(encoder: Encoder, precision: Precision) -> Encoder:
    """The encoder, to be read under autocast in this precision.

    Packed weights would be multiplied in float32, whatever autocast says.
    """
    if precision == "float32":
        return encoder
    return encoder.with_weights(dense(encoder.weights, {}))


def anchor_lengths(window: int) -> list[int]:
    """Lengths of the short texts whose vectors should stay, for a teacher with this window."""
    return [length for length in _ANCHOR_LENGTHS if length <= window] or [window]


def cut_queries(batch: Batch, size: int, generator: np.random.Generator) -> tuple[Batch, Batch]:
    """A stretch of each text, between the text's own special tokens, and the text without it."""
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


def _num_tokens(*batches: Batch | None) -> int:
    return sum(len(batch.ids) for batch in batches if batch is not None)


def _weighted(stage: Stage, length: int, tokens: int, parts: Mapping[str, Tensor]) -> StepLoss:
    shares = {
        "retrieval": 1.0,
        "context": 1.0,
        "fidelity": stage.fidelity_share,
        "window": stage.held_share,
    }
    loss = torch.stack([shares[name] * part for name, part in parts.items()]).sum()
    return StepLoss(loss, length, tokens, parts)
